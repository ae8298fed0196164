"""Every setting with its type, default and meaning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MIB = 1024 * 1024
HOME = "~/.hutch"
DEFAULT_PORT = 4111

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]

RecordLevel = Literal["metadata", "errors", "full"]

SECRETS = ("api_key", "cluster_password", "cluster_secret", "cluster_url", "database_url", "proxy_url")
"""Settings whose values are never shown."""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings with their types and defaults."""

    home: str = HOME
    """Folder for caches, keys and databases."""
    database_url: str | None = None
    """PostgreSQL database to use instead of SQLite in `home`."""
    isolation: Literal["auto", "container", "process"] = "auto"
    """Isolation of guests. `auto` uses the strongest kind that passes the self-test. `container` refuses to
    start with a weaker kind.
    """
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    api_key: str | None = None
    """Key that clients of Execbox, TPMJS and the gateway must send; None for no key. Also read from
    EXECUTOR_API_KEY.
    """

    allowed_hosts: tuple[str, ...] = ()
    """Names that requests may send in `Host`, in addition to `host` and the loopback names."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may connect, such as `https://example.com`."""
    max_connections: Positive = 4_096
    """Maximum open connections of `hutch serve`. At most half of the file descriptors that the process may
    open are used for connections.
    """
    max_connections_per_address: Positive = 1_024
    """Maximum open connections of one address, or of one IPv6 network of 64 bits. Loopback addresses have no
    such limit.
    """
    drain_seconds: Seconds = 30.0
    """Seconds that the server waits for running executions after SIGTERM."""

    # Limits of an execution: the default, and the maximum that a caller may ask for.
    timeout_ms: Positive = 5_000
    max_timeout_ms: Positive = 300_000
    memory_limit_bytes: Positive = 64 * MIB
    max_memory_limit_bytes: Positive = 1024 * MIB
    max_log_lines: Count = 100
    max_log_lines_ceiling: Count = 10_000
    max_log_chars: Count = 64_000
    max_log_chars_ceiling: Count = 4_000_000
    max_code_bytes: Positive = 4 * MIB
    max_result_bytes: Positive = 8 * MIB
    max_files: Positive = 100
    """Maximum number of input files of a run, and of output files."""
    max_file_bytes: Positive = 32 * MIB
    """Maximum size of all input files of a run together, and of all output files."""
    max_line_bytes: Positive = 16 * MIB
    max_pending_bytes: Positive = 64 * MIB
    """Maximum size of the `execute` messages of one Execbox client that wait or run, together."""
    max_checkpoint_bytes: Positive = 64 * MIB
    """Maximum size of a suspended execution: the part of its memory that differs from the memory of a new
    execution.
    """
    max_state_bytes: Positive = 1024 * MIB
    """Maximum memory of the host for the states of suspended runs and sessions that are being stored,
    restored or used. One owner may use four fifths of it.
    """
    checkpoint_after_ms: Count = 0
    """Milliseconds after which an execution that waits for tools is stored and frees its VM, while the tools
    continue. It then survives the end of the process. 0 for never.
    """
    max_suspended_bytes_per_owner: Positive = 1024 * MIB
    """Maximum size of the suspended runs of one owner in the store, including the results of those that have
    ended.
    """
    checkpoint_days: Positive = 30
    """Days after which a suspended run can no longer be continued."""
    max_sessions_per_owner: Positive = 1_000
    """Maximum number of stateful sessions of one owner."""
    max_session_bytes_per_owner: Positive = 1024 * MIB
    """Maximum size of the stateful sessions of one owner in the store."""
    max_value_bytes_per_owner: Positive = 64 * MIB
    """Maximum size of the large results of one owner that are kept for later calls."""
    value_hours: Positive = 24
    """Hours for which a large result is kept."""
    max_session_history: Positive = 20
    """Maximum number of turns that a stateful session can be rolled back."""
    session_days: Positive = 30
    """Days after the last turn of a stateful session at which it expires."""
    session_idle_ms: Positive = 1_000
    """Milliseconds after a turn until the state of its session is stored and its memory is freed."""
    max_calls: Positive = 100_000
    max_outstanding_calls: Positive = 256
    cancel_grace_ms: Positive = 25
    """Milliseconds that a cancelled execution may take to return its logs."""

    # Pool of runner processes.
    quickjs_warm: Count = 1
    """Number of idle runner processes kept ready. They belong to no owner yet."""
    quickjs_processes: Positive = cores()
    """Maximum runner processes of one owner. An owner whose processes are not full gets another process only
    while fewer than this many processes of all owners are busy. While fewer executions than this run, a
    runner polls briefly for its next message before it sleeps.
    """
    quickjs_vms: Positive = 2_048
    """Maximum executions in flight in one runner process."""
    quickjs_process_bytes: Positive = 4_096 * MIB
    """Memory limit of one runner process with all its executions."""
    owners_share: bool = False
    """Lets executions of different owners share a runner process."""
    deno_warm: Count = 2
    """Number of single-use Deno processes kept ready."""
    max_processes: Positive = 20
    """Maximum runner processes of all engines and owners."""
    max_processes_per_owner: Count = 0
    """Maximum runner processes that one owner's executions may occupy; 0 means four fifths of
    `max_processes`. The last fifth is kept for owners whose executions occupy none.
    """
    max_queue: Count = 1_250
    """Maximum executions that wait for a runner."""
    max_queue_per_owner: Count = 0
    """Maximum waiting executions of one owner; 0 means four fifths of `max_queue`. The last fifth is kept for
    owners without a waiting execution.
    """
    max_concurrent_executions: Count = 0
    """Maximum executions of one owner that wait or run; 0 means no limit. This and the next three limits can
    be set for single users and keys.
    """
    max_executions_per_minute: Count = 0
    """Maximum executions that one owner may start per minute; 0 means no limit."""
    max_executions_per_day: Count = 0
    """Maximum executions that one owner may start per day (UTC); 0 means no limit."""
    max_cpu_seconds_per_day: Count = 0
    """Maximum CPU seconds of the executions of one owner per day (UTC); 0 means no limit."""
    queue_seconds: Seconds = 30.0
    """Seconds that an execution waits for a runner before it fails with `Busy`."""
    idle_seconds: Seconds = 300.0
    """Seconds after which an idle runner process ends. The configured number of warm processes stays."""
    recycle_after: Positive = 100_000
    """Number of executions after which a runner process is replaced."""

    # TPMJS: tools in npm packages.
    executor_name: str = "Hutch"
    region: str | None = None
    metadata: dict[str, str] = {}
    """Additional fields in `/info`."""
    tpmjs_string_errors: bool = True
    """Sends `error` as a string to TPMJS clients that send no protocol version. The public web client
    requires this.
    """
    tpmjs_validate: bool = False
    """Refuses parameters that do not match the schema of a TPMJS tool, even if the request does not ask for
    it.
    """
    tool_timeout_ms: Positive = 120_000
    tool_memory_bytes: Positive = 512 * MIB
    request_seconds: Seconds = 180.0
    """Maximum seconds for a request: installation, waiting and execution together."""
    max_body_bytes: Positive = 10 * MIB
    max_tools: Positive = 80
    """Maximum concurrent tool calls, including calls that wait for a process. Further calls are refused as
    busy.
    """
    max_tools_per_caller: Count = 0
    """Maximum concurrent tool calls of one key or, without keys, one address; 0 means four fifths of
    `max_tools`. The last fifth is kept for callers without a call in progress.
    """
    rate_limit: Count = 0
    """Tool calls per minute for each key or, without keys, each address; 0 means no limit."""
    tool_calls_per_process: Positive = 1
    """Successive calls of the same package, version, env and caller that one process may serve."""
    max_spares: Count = 8
    """Maximum number of spares, which are idle processes that have already imported a package."""
    spare_bytes: Positive = 1024 * MIB
    """Maximum memory of all spares together."""
    spare_seconds: Seconds = 300.0
    """Seconds that a spare may stay idle."""
    install_seconds: Seconds = 60.0
    latest_seconds: Seconds = 300.0
    """Seconds for which the resolved version of a range or tag is cached."""
    max_package_bytes: Positive = 512 * MIB
    max_package_files: Positive = 100_000
    """Maximum number of files in a package. Like `max_package_bytes`, it includes all dependencies."""
    offline: bool = False
    """Runs only packages that are already installed."""
    egress: Literal["none", "public", "allowlist"] = "public"
    """Hosts that tools may reach: none, the public internet, or only the entries of `egress_allow`."""
    egress_allow: tuple[str, ...] = ()
    """`host:port` entries that tools may reach even if they are not public. With `allowlist`, tools may reach
    only these entries.
    """
    package_egress: dict[str, str] = {}
    """Stricter policy for single packages: `none`, or a list of hosts separated by spaces."""

    # Requests made by abilities.
    egress_http_hosts: tuple[str, ...] = ()
    """Hosts that abilities may reach over plain http, in addition to `egress_allow`."""
    trace_hosts: tuple[str, ...] = ()
    """Hosts to which requests of abilities and flows carry the trace context, if traces are exported."""
    proxy_url: str | None = None
    """HTTP proxy for the requests of abilities. Also read from PROXY_URL."""
    fetch_seconds: Seconds = 30.0
    max_fetch_bytes: Positive = 8 * MIB
    """Maximum size of a response body after decompression."""
    max_fetch_body_bytes: Positive = 8 * MIB
    """Maximum size of a request body."""
    max_fetch_redirects: Count = 20
    max_fetch_requests: Positive = 50
    """Maximum requests of one run, including redirects."""

    ability_timeout_ms: Positive = 30_000
    """Time limit of a wrapper, including its requests."""
    ability_memory_bytes: Positive = 64 * MIB
    """Memory limit of a wrapper and of a transform."""
    transform_timeout_ms: Positive = 5_000
    max_ability_chars: Positive = 30_000
    """Maximum length of the JSON text of a response body. Longer text is truncated."""
    ability_expire_on: str = "401,403,407"
    """HTTP statuses that mark a credential as expired: `401,403,407`, or a range such as `401-499`."""
    ability_rate_limit: Count = 600
    """Maximum requests to the abilities API per minute for each user's key; 0 means no limit."""
    keep_runs_days: Count = 30
    """Days for which run records are kept; 0 means forever."""
    max_runs_bytes: Count = 4096 * MIB
    """Maximum size of all run records together. Beyond this, the oldest are deleted; 0 means no limit."""
    record: RecordLevel = "errors"
    """Contents of run records: only metadata (`metadata`), also messages, code and last log lines of failed
    runs (`errors`), or everything (`full`).
    """
    record_protocols: dict[str, RecordLevel] = {}
    """Values of `record` for single protocols."""
    record_keys: dict[str, RecordLevel] = {}
    """Values of `record` for runs that were requested with single API keys, by the id of the key. They take
    precedence over `record_protocols`.
    """
    max_record_bytes: Positive = 256 * 1024
    """Maximum size of the content of one run record. Longer values are left out."""

    # Toolscripts.
    mcp_config: tuple[str, ...] = ()
    """MCP configuration files. Default: `.toolscript.json` in the user's home directory and, for commands
    other than servers, in the current directory if it is trusted.
    """
    mcp_eager: bool = True
    """Connects to all MCP servers at the start. Otherwise each server is connected on first use."""
    example_tools: bool = False
    """Offers the tools of an example shop if no MCP server is configured, for a first trial."""
    mcp_pass_through: bool = False
    """Also offers every tool of the MCP servers directly in `/mcp`."""
    max_mcp_sessions: Positive = 1_000
    """Maximum open sessions of all users' MCP clients together. The operator has a separate limit of the same
    size.
    """
    max_mcp_sessions_per_user: Positive = 100
    """Maximum open sessions of one user's MCP clients."""
    approvals: dict[str, str] = {}
    """Approval rules: `allow`, `ask` or `deny` for a server, a `server__tool`, or `*`."""
    script_timeout_ms: Positive = 120_000
    script_memory_bytes: Positive = 256 * MIB
    script_strict: bool = False
    """Checks all code of toolscripts strictly, not only the use of tools."""

    # Flows.
    flow_rate_limit: Count = 120
    """Maximum registrations of flows and starts of flow runs per minute for each user's key; 0 means no
    limit.
    """
    max_flows: Positive = 16
    """Maximum concurrent flow runs. Each has its own process. Up to `max_queue` further runs wait."""

    # Asynchronous runs.
    max_async_runs: Positive = 16
    """Maximum asynchronous runs that one server executes at once."""
    max_queued_runs_per_owner: Positive = 100_000
    """Maximum asynchronous runs of one owner that wait."""
    async_lease_seconds: Annotated[float, Meta(ge=1)] = 15.0
    """Seconds after which the runs of a server that died are taken over by another one."""
    async_result_days: Positive = 7
    """Days for which the results of asynchronous runs, their idempotency keys and their webhook deliveries
    are kept. Dead letters are kept for `keep_runs_days`.
    """

    # Many machines.
    cluster_url: str | None = None
    """NATS servers of the cluster, such as `nats://10.0.0.1:4222`, separated by commas. None for one
    machine.
    """
    cluster_name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")] = "hutch"
    """Name of the cluster. Clusters with different names can share NATS servers."""
    cluster_secret: Annotated[str, Meta(min_length=32)] | None = None
    """Secret that all machines of a cluster share, of at least 32 characters. Everything that they exchange
    is encrypted with keys that are derived from it.
    """
    cluster_node: Annotated[str, Meta(max_length=64)] = ""
    """Name of this machine in `hutch cluster status`. Default: its host name."""
    cluster_local: bool = True
    """Runs executions on the server itself while no worker has a free place."""
    cluster_user: str | None = None
    cluster_password: str | None = None
    cluster_nkey_file: str | None = None
    """File with the seed of the NATS nkey with which this machine signs in."""
    cluster_creds_file: str | None = None
    """NATS credentials file with which this machine signs in."""
    cluster_tls_ca: str | None = None
    """File with the certificates of the authorities that sign the certificates of the NATS servers."""
    cluster_tls_cert: str | None = None
    """File with the certificate of this machine for NATS servers that ask for one."""
    cluster_tls_key: str | None = None
    worker_places: dict[str, int] = {}
    """Maximum number of executions that a worker runs at the same time, by engine. The default is 64 for each
    core for `quickjs`, and four fifths of `max_processes` for all other engines, which share one limit. If
    several of those engines are listed, the shared limit is the largest of their numbers.
    """

    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_json: bool = False

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={'***' if value and name in SECRETS else repr(value)}" for name, value in values)
        return f"Settings({', '.join(shown)})"

    @property
    def home_path(self) -> Path:
        return Path(self.home).expanduser()
