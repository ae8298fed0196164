"""Types of the keyword arguments of `hutch.Hutch`, for type checkers. A test compares them
with `Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class SettingOverrides(TypedDict, total=False):
    home: str
    database_url: str | None
    isolation: Literal["auto", "container", "process"]
    host: str
    port: int
    api_key: str | None
    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    max_connections: int
    max_connections_per_address: int
    drain_seconds: float
    timeout_ms: int
    max_timeout_ms: int
    memory_limit_bytes: int
    max_memory_limit_bytes: int
    max_log_lines: int
    max_log_lines_ceiling: int
    max_log_chars: int
    max_log_chars_ceiling: int
    max_code_bytes: int
    max_result_bytes: int
    max_files: int
    max_file_bytes: int
    max_line_bytes: int
    max_pending_bytes: int
    max_checkpoint_bytes: int
    max_state_bytes: int
    checkpoint_after_ms: int
    max_suspended_bytes_per_owner: int
    checkpoint_days: int
    max_sessions_per_owner: int
    max_value_bytes_per_owner: int
    value_hours: int
    max_session_bytes_per_owner: int
    max_session_history: int
    session_days: int
    session_idle_ms: int
    max_calls: int
    max_outstanding_calls: int
    cancel_grace_ms: int
    quickjs_warm: int
    quickjs_processes: int
    quickjs_vms: int
    quickjs_process_bytes: int
    owners_share: bool
    deno_warm: int
    max_processes: int
    max_processes_per_owner: int
    max_queue: int
    max_queue_per_owner: int
    max_concurrent_executions: int
    max_executions_per_minute: int
    max_executions_per_day: int
    max_cpu_seconds_per_day: int
    queue_seconds: float
    idle_seconds: float
    recycle_after: int
    executor_name: str
    region: str | None
    metadata: Mapping[str, str]
    tpmjs_string_errors: bool
    tpmjs_validate: bool
    tool_timeout_ms: int
    tool_memory_bytes: int
    request_seconds: float
    max_body_bytes: int
    max_tools: int
    max_tools_per_caller: int
    rate_limit: int
    tool_calls_per_process: int
    max_spares: int
    spare_bytes: int
    spare_seconds: float
    install_seconds: float
    latest_seconds: float
    max_package_bytes: int
    max_package_files: int
    offline: bool
    egress: Literal["none", "public", "allowlist"]
    egress_allow: Sequence[str]
    package_egress: Mapping[str, str]
    egress_http_hosts: Sequence[str]
    trace_hosts: Sequence[str]
    proxy_url: str | None
    fetch_seconds: float
    max_fetch_bytes: int
    max_fetch_body_bytes: int
    max_fetch_redirects: int
    max_fetch_requests: int
    ability_timeout_ms: int
    ability_memory_bytes: int
    transform_timeout_ms: int
    max_ability_chars: int
    ability_expire_on: str
    ability_rate_limit: int
    keep_runs_days: int
    max_runs_bytes: int
    record: Literal["metadata", "errors", "full"]
    record_protocols: Mapping[str, Literal["metadata", "errors", "full"]]
    record_keys: Mapping[str, Literal["metadata", "errors", "full"]]
    max_record_bytes: int
    mcp_config: Sequence[str]
    mcp_eager: bool
    example_tools: bool
    mcp_pass_through: bool
    max_mcp_sessions: int
    max_mcp_sessions_per_user: int
    approvals: Mapping[str, str]
    script_timeout_ms: int
    script_memory_bytes: int
    script_strict: bool
    flow_rate_limit: int
    max_flows: int
    max_async_runs: int
    max_queued_runs_per_owner: int
    async_lease_seconds: float
    async_result_days: int
    cluster_url: str | None
    cluster_name: str
    cluster_secret: str | None
    cluster_node: str
    cluster_local: bool
    cluster_user: str | None
    cluster_password: str | None
    cluster_nkey_file: str | None
    cluster_creds_file: str | None
    cluster_tls_ca: str | None
    cluster_tls_cert: str | None
    cluster_tls_key: str | None
    worker_places: Mapping[str, int]
    log_level: Literal["debug", "info", "warning", "error"]
    log_json: bool
