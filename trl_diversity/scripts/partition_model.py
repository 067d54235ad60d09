# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that sort completions into clusters: any equivalence model, here or on a server."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class PartitionModelArguments:
    """
    Arguments that choose an equivalence model.

    Args:
        partition_model (`str`, *optional*, defaults to `"default"`):
            Hub name, directory or short name as `load_equivalence_model` takes them, or the dotted path of a class
            whose instances have `score_pairs` and `threshold`. With `partition_server_urls` the classifier that is
            served; `"default"` is then what the servers say.
        partition_threshold (`float`, *optional*):
            Probability above which two completions are one cluster. The model's own by default.
        partition_server_urls (`list[str]`, *optional*):
            vLLM servers of a pair classifier.
        judge_base_url (`str`, *optional*), judge_model (`str`, *optional*), judge_prompt (`str`, *optional*, defaults
        to `"writing"`):
            A chat server that judges pairs, instead of a classifier.
    """

    partition_model: str = field(
        default="default", metadata={"help": "Equivalence model: Hub name, directory, short name or dotted path."}
    )
    partition_threshold: float | None = field(
        default=None, metadata={"help": "Probability above which two completions are one cluster."}
    )
    partition_server_urls: list[str] | None = field(
        default=None, metadata={"help": "vLLM servers of a pair classifier."}
    )
    judge_base_url: str | None = field(default=None, metadata={"help": "Chat server that judges pairs instead."})
    judge_model: str | None = field(default=None, metadata={"help": "Name of the judge on its server."})
    judge_prompt: str = field(
        default="writing", metadata={"help": "What the judge is asked: `writing`, `math`, a file."}
    )

    def __post_init__(self):
        if self.partition_threshold is not None and not 0 <= self.partition_threshold <= 1:
            raise ValueError(f"`partition_threshold` lies in [0, 1]; got {self.partition_threshold}.")
        if (self.judge_base_url is None) != (self.judge_model is None):
            raise ValueError("`judge_base_url` and `judge_model` go together.")
        if self.judge_base_url is not None and self.partition_server_urls is not None:
            raise ValueError("give `judge_base_url` or `partition_server_urls`, not both.")

    def load(self, device: str | None = None, dtype: str | None = None, trust_remote_code: bool = False) -> Any:
        """The equivalence model."""
        from trl_diversity import equivalence

        if self.judge_base_url is not None:
            return equivalence.JudgeEquivalence(self.judge_base_url, str(self.judge_model), self.judge_prompt)
        if self.partition_server_urls is not None:
            return equivalence.ServerEquivalence(
                self.partition_server_urls,
                None if self.partition_model == "default" else self.partition_model,
                self.partition_threshold,
                trust_remote_code=trust_remote_code,
            )
        if self._is_dotted():
            from trl_diversity.trainers.diversity_source import import_dotted

            found = import_dotted(self.partition_model)
            return found() if isinstance(found, type) else found
        return equivalence.load_equivalence_model(
            self.partition_model,
            threshold=self.partition_threshold,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        )

    def described(self) -> dict[str, Any]:
        """What the clusters depend on, as it is written beside them. Users in URLs are left out."""
        values = asdict(self)
        urls = self.partition_server_urls
        values["partition_server_urls"] = None if urls is None else [url.rpartition("@")[2] for url in urls]
        values["judge_base_url"] = None if self.judge_base_url is None else self.judge_base_url.rpartition("@")[2]
        return values

    def _is_dotted(self) -> bool:
        from pathlib import Path

        name = self.partition_model
        return "." in name and "/" not in name and not Path(name).exists()
