# SPDX-License-Identifier: Apache-2.0
"""Two ranks share a real server without asking twice for a pair."""

import pytest

from tests.distributed.test_servers import check_that_two_ranks_share
from tests.servers.proxy import proxied


pytestmark = [pytest.mark.slow, pytest.mark.distributed]


def test_two_ranks_share_a_real_server(tmp_path, causal_lm_path, command):
    with proxied(command.url) as (loopback, _):
        check_that_two_ranks_share(loopback, tmp_path, causal_lm_path)
