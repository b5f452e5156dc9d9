"""keys.lua builds the same keys as keys.py."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.valkey.connect import Valkey

BUILD_ALL = """
local E, Q, EJ = ARGV[2], ARGV[3], ARGV[4]
return {META, METRICS, METRICS_ENABLED, ENVS, QUEUES, LEASES, SCHEDULED, EXPIRIES, env_key(E), env_queues_key(E),
  env_names_key(E), env_blocked_key(E), class_key(Q), queue_key(E, Q), levels_key(E, Q), ready_key(E, Q, 0),
  ready_key(E, Q, -7), dead_key(E, Q), job_key(EJ), body_key(EJ), ENVIRONMENTS, WAKE, wake_key(Q), DUE,
  env_cold_ids_key(E)}
"""


def test_lua_and_python_build_the_same_keys(valkey: Valkey, queue_ref: QueueRef) -> None:
    source = (files("headrace.queue") / "lua" / "keys.lua").read_text() + BUILD_ALL
    env = queue_ref.environment
    args = [keys.prefix(3), keys.env_part(env), keys.encode(queue_ref.queue), keys.job_part(env, "j:%1")]
    built: Any = valkey.execute_command("EVAL", source, 0, *args)
    assert [key.decode() for key in built] == [
        *(keys.meta(3), keys.metrics(3), keys.metrics_enabled(3), keys.envs(3), keys.queues(3)),
        *(keys.leases(3), keys.scheduled(3), keys.expiries(3), keys.env(3, env), keys.env_queues(3, env)),
        *(keys.env_names(3, env), keys.env_blocked(3, env), keys.queue_class(3, queue_ref.queue)),
        *(keys.queue(3, queue_ref), keys.levels(3, queue_ref), keys.ready(3, queue_ref)),
        *(keys.ready(3, queue_ref, -7), keys.dead(3, queue_ref), keys.job(3, env, "j:%1")),
        *(keys.body(3, env, "j:%1"), keys.environments(3), keys.wake(3), keys.wake_by_name(3, queue_ref.queue)),
        *(keys.due(3), keys.env_cold_ids(3, env)),
    ]
