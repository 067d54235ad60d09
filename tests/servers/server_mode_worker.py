# SPDX-License-Identifier: Apache-2.0
"""Worker: Darling with a server that generates and one that judges; it says when it has reached its second step."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from transformers import TrainerCallback

from tests.servers.weight_transport import send_weights_through
from tests.trainers.helpers import logged, make_trainer


class Notes(TrainerCallback):
    """Leaves a file at the end of every step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def on_step_end(self, args, state, control, **kwargs):
        (self.directory / f"step{state.global_step}").touch()


def main(directory: Path, policy: str, generation_url: str, judging_url: str, steps: int = 100_000) -> None:
    with pytest.MonkeyPatch.context() as patch:
        send_weights_through(shutil.copytree(policy, directory / "weights", dirs_exist_ok=True), patch)
        trainer = make_trainer(
            directory / "run",
            policy,
            diversity=None,
            partition_server_urls=[judging_url],
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=generation_url,
            vllm_importance_sampling_correction=True,
            max_steps=steps,
        )
        trainer.add_callback(Notes(directory))
        trainer.train()
        (directory / "done").write_text(json.dumps(logged(trainer, "sampling/sampling_logp_difference/max")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5], *map(int, sys.argv[5:]))
