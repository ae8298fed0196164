"""Executes abilities in the seven steps of the specification. Errors are returned as responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from hutch.egress.client.client import FetchClient
from hutch.egress.client.headers import MAX_HEADER_BYTES
from hutch.egress.client.models import RequestLogEntry
from hutch.egress.redaction import MARK, prepare_redactor
from hutch.errors import InvalidInput, StoreError
from hutch.http.errors import ApiError, to_api_error
from hutch.kernel.kernel import Kernel
from hutch.kernel.run_preparation import RunPreparation
from hutch.protocols.abilities import responses
from hutch.protocols.abilities.definition import AbilityDefinition, decode_definition
from hutch.protocols.abilities.fetch_tools import FetchTools
from hutch.protocols.abilities.headers import (
    HeaderInjector,
    HeaderKey,
    ResolvedHeaders,
    ability_domain,
    credential_domains,
    evaluate_static_headers,
    parse_header_key,
    required_keys,
    resolve_credentials,
)
from hutch.protocols.abilities.outcome import (
    AbilityResponseBuilder,
    CredentialOutcomes,
    ResponseContent,
    credential_outcomes,
    login_abilities,
    parse_statuses,
)
from hutch.protocols.abilities.params import params_error
from hutch.protocols.abilities.produced_credentials import ValueNotFound, find_credential, mask_body
from hutch.protocols.abilities.requests import CREDENTIAL_KEY_HEADER
from hutch.protocols.abilities.sandbox_run import AbilityRun
from hutch.protocols.abilities.wrapper import (
    WrapperFailure,
    WrapperOutcome,
    WrapperResponse,
    run_transform,
    run_wrapper,
)
from hutch.store.models import Ability, User
from hutch.store.store import Store
from hutch.text import now_rfc3339
from hutch.vault.client_import import unlock_secrets
from hutch.vault.credentials import MAX_VALUE_BYTES, Secret
from hutch.vault.vault import Vault

logger = logging.getLogger("hutch.abilities")

MAX_LOGINS = 10
_NO_HOST = "Neither these headers nor service_name contain a host: the author must write `host::Header`"


class AbilityResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Response in the specification's format, with details of the run."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = {}
    run_id: str = ""
    logs: list[str] = []
    request_log: list[RequestLogEntry] = []
    """Requests made by the wrapper."""
    wanted: tuple[str, ...] = ()
    """Header keys whose credentials were rejected."""


class MissingCredentials(ApiError):
    """The user has no credentials for some header keys."""

    def __init__(self, resolved: ResolvedHeaders, locked: Sequence[Secret], kinds: Mapping[str, str]) -> None:
        """`kinds` maps header keys to the kinds of credentials that the ability declares."""
        names = {key.text: f"{key.host}::{key.name}" if key.host else key.text for key in resolved.missing}
        known_kinds = {name: kinds[text] for text, name in names.items() if text in kinds}
        super().__init__(
            "missing_credentials",
            _missing_credentials(resolved, locked),
            missingCredentials=[*names.values()],
            **({"credentialKinds": known_kinds} if known_kinds else {}),
        )
        self.wanted = tuple(_key_text(key) for key in resolved.missing)

    def after_login(self, login: LoginFailure) -> ApiError:
        """Returns this error with the reason why the login failed. If the login itself lacks credentials, the
        error lists the credentials that the login lacks, because the user has to store those.
        """
        return ApiError(self.kind, f"{self.message}. {login}", **{**self.extra, **login.missing})


class LoginFailure(msgspec.Struct, frozen=True):
    """A login that ran because a credential was missing or rejected, and the reason why it failed."""

    ability_id: str
    reason: str
    missing: dict[str, Any] = {}
    """Fields of the login's own MissingCredentials error. Empty if the login failed for another reason."""

    def __str__(self) -> str:
        return f"The login {self.ability_id}, which obtains these credentials, failed: {self.reason}"


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of one call of an ability."""

    user: User
    owner_id: str
    """Id of the user who owns the ability. The owner need not be the caller."""
    definition: AbilityDefinition
    params: dict[str, Any]
    transform_code: str | None
    ability_run: AbilityRun
    credential_key: str


class AbilityExecutor:
    """Executes abilities with the credentials of their users."""

    def __init__(self, kernel: Kernel, store: Store, vault: Vault, http_client: FetchClient) -> None:
        """Raises SettingError if the setting `ability_expire_on` is invalid."""
        self._kernel = kernel
        self._settings = kernel.settings
        self._store = store
        self._vault = vault
        self._http_client = http_client
        self._expire_on = parse_statuses(kernel.settings.ability_expire_on)
        self._login_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def execute(
        self,
        user: User,
        ability_id: str,
        params: dict[str, Any],
        transform_code: str | None = None,
        *,
        protocol: str = "abilities",
        run_id: str | None = None,
        credential_key: str = "",
        version: int | None = None,
        preparation: RunPreparation | None = None,
    ) -> AbilityResponse:
        """Executes an ability. `credential_key` decrypts credentials that a client has encrypted. `version`
        is a version of the user's own ability, by default the newest. Never raises: errors become responses
        in the specification's format.
        """
        ability_run = AbilityRun(
            kernel=self._kernel,
            owner=user.id,
            protocol=protocol,
            label=ability_id,
            preparation=preparation,
        )
        try:
            row = await self._ability(ability_id, user, version)
            call = _Call(
                user=user,
                owner_id=row.owner_id,
                definition=decode_definition(row.document),
                params=params,
                transform_code=transform_code,
                ability_run=ability_run,
                credential_key=credential_key,
            )
            return await self._execute(call, run_id)
        except Exception as error:
            failure = to_api_error(error, logger)
            return AbilityResponse(
                status=responses.ABILITY_ERRORS[failure.kind].status,
                body=responses.execution_error(failure),
                headers=dict(failure.headers or {}),
            )

    async def _execute(self, call: _Call, run_id: str | None) -> AbilityResponse:
        """Executes an ability. If a credential was missing or rejected and a login obtained a new one,
        executes the ability once more.
        """
        started = now_rfc3339()
        response: AbilityResponse | None = None
        try:
            response = await self._execute_once(call, run_id)
            wanted = response.wanted
            login_log = await self._log_in(call, wanted, started) if wanted else None
        except MissingCredentials as error:
            login_log = await self._log_in(call, error.wanted, started)
            if login_log is None:
                raise
            if isinstance(login_log, LoginFailure):
                raise error.after_login(login_log) from None
        if login_log is None or isinstance(login_log, LoginFailure):
            assert response is not None
            if login_log is not None:
                response.body["error"] = f"{response.body['error']}. {login_log}"
            return response
        again = await self._execute_once(call, None)
        first_log = response.request_log if response is not None else []
        return msgspec.structs.replace(again, request_log=[*first_log, *login_log, *again.request_log])

    async def _execute_once(self, call: _Call, run_id: str | None) -> AbilityResponse:
        user, definition, params = call.user, call.definition, call.params
        transform_code, ability_run = call.transform_code, call.ability_run
        builder = AbilityResponseBuilder(self._settings.max_ability_chars)
        builder.about = {"abilityName": definition.ability_name, "domain": ability_domain(definition)}
        if (problem := params_error(definition.input_schema, params)) is not None:
            raise ApiError("invalid_request", problem)
        await self._check_dependencies(definition, user)
        resolved = await self._credentials(definition, user, call.credential_key)
        injector = HeaderInjector(await evaluate_static_headers(definition, ability_run), resolved.headers)
        secrets = tuple(secret.value for secret in resolved.secrets)
        await prepare_redactor(secrets)
        fetch_session = self._http_client.open_session(injector, secrets, owner=user.id)
        builder.redactor = fetch_session.redactor
        fetch_tools = FetchTools(fetch_session)
        try:
            outcome = await run_wrapper(
                definition,
                params,
                fetch_tools,
                ability_run,
                request_log=fetch_session.request_log,
                redactor=fetch_session.redactor,
                is_own=call.owner_id == user.id,
                run_id=run_id,
            )
        finally:
            await fetch_session.close()
        credentials = credential_outcomes(fetch_session.request_log, self._expire_on)
        await self._mark(credentials, resolved.secrets)
        content = await self._error_content(definition, user, credentials, outcome, fetch_tools, builder)
        if content is None:
            assert outcome.response is not None
            try:
                body = outcome.response.body
                if definition.produces:
                    body = await self._store_produced(definition, user, outcome.response, secrets, builder)
                if transform_code:
                    body = await run_transform(transform_code, body, ability_run)
                content = await builder.success(outcome.response, body)
            except ValueNotFound as error:
                failure = WrapperFailure(code="WRAPPER_ERROR", message=str(error))
                content = await builder.wrapper_failed(failure, None)
        logs = list(await builder.redactor.texts(outcome.logs))
        return AbilityResponse(
            status=content.status,
            body=content.body,
            headers=content.headers,
            run_id=outcome.run_id,
            logs=logs,
            request_log=fetch_session.request_log,
            wanted=tuple(
                _key_text(header.key)
                for header in resolved.headers
                if header.credential in credentials.rejected
            ),
        )

    # --- before the wrapper runs ---

    async def _ability(self, ability_id: str, user: User, version: int | None) -> Ability:
        if version is None:
            row = await self._store.abilities.get(ability_id, user.id)
        else:
            row = await self._store.abilities.version(ability_id, user.id, version)
        if row is None:
            raise responses.not_found(ability_id if version is None else f"{ability_id}, version {version}")
        return row

    async def _check_dependencies(self, definition: AbilityDefinition, user: User) -> None:
        """Checks that all declared dependencies exist, including those in `dependencies.missing`."""
        required = dict.fromkeys((*definition.missing_dependencies, *definition.dependency_order))
        required.pop(definition.ability_id, None)
        if not required:
            return
        existing = await self._store.abilities.existing(list(required), user.id)
        if missing := [ability_id for ability_id in required if ability_id not in existing]:
            raise ApiError("missing_dependencies", f"Missing dependencies: {', '.join(missing)}")

    async def _credentials(
        self, definition: AbilityDefinition, user: User, credential_key: str
    ) -> ResolvedHeaders:
        keys = required_keys(definition)
        if not keys:
            return ResolvedHeaders()
        domains = credential_domains(keys)
        secrets = await self._vault.secrets(user, domains) if domains else []
        readable, locked = unlock_secrets(secrets, credential_key)
        resolved = resolve_credentials(keys, readable)
        if resolved.missing:
            raise MissingCredentials(resolved, locked, definition.credential_kinds)
        if sum(len(secret.value) for secret in resolved.secrets) > MAX_HEADER_BYTES:
            max_kib = MAX_HEADER_BYTES // 1024
            message = f"The credentials of this ability have more than {max_kib} KiB"
            raise ApiError("invalid_request", message)
        return resolved

    # --- after the wrapper ran ---

    async def _mark(self, credentials: CredentialOutcomes, secrets: Sequence[Secret]) -> None:
        """Marks rejected credentials as expired. Removes the mark from credentials that were accepted."""
        state = {secret.credential.id: secret.credential.state for secret in secrets}
        by_cause: dict[str, list[str]] = {}
        for credential_id, entry in credentials.rejected.items():
            by_cause.setdefault(f"{entry.host} answered {entry.status}", []).append(credential_id)
        revived = [id for id in credentials.accepted if state.get(id) == "expired"]
        try:
            for cause, ids in by_cause.items():
                await self._vault.expire(ids, cause)
            if revived:
                await self._vault.revive(revived)
        except StoreError as error:
            # Only log the error. If the call failed here, the caller would repeat the call, and with it the
            # side effects of the wrapper.
            logger.error("marking credentials failed: %s", error)

    async def _error_content(
        self,
        definition: AbilityDefinition,
        user: User,
        credentials: CredentialOutcomes,
        outcome: WrapperOutcome,
        fetch_tools: FetchTools,
        builder: AbilityResponseBuilder,
    ) -> ResponseContent | None:
        """Returns the error response, or None if the ability succeeded."""
        response = outcome.response
        status = credentials.last_status
        if status is None and response is not None and response.status in self._expire_on:
            status = response.status
        if status is not None:
            logins = await self._logins(definition, user)
            marked = bool(credentials.rejected)
            return await builder.credentials_rejected(
                status, response, fetch_tools.last, marked=marked, logins=logins
            )
        if outcome.failure is not None:
            return await builder.wrapper_failed(outcome.failure, fetch_tools.last)
        assert response is not None
        return None if response.ok else await builder.upstream_error(response)

    async def _store_produced(
        self,
        definition: AbilityDefinition,
        user: User,
        response: WrapperResponse,
        secrets: tuple[str, ...],
        builder: AbilityResponseBuilder,
    ) -> Any:
        """Stores the credentials that the ability declares in `produces`. Returns the body without these
        credentials.

        The code of a transform comes from the caller, so it gets the returned body and not the original one.
        Raises ValueNotFound.
        """
        values = [(each, find_credential(each, response)) for each in definition.produces]
        for produced, value in values:
            # Refuse values of megabytes, because creating a redactor for them would take seconds.
            if value is not None and len(value) > MAX_VALUE_BYTES:
                raise ValueNotFound(
                    f"{produced.key} cannot be stored: expected at most {MAX_VALUE_BYTES} bytes."
                )
        found = tuple(value for _, value in values if value is not None)
        builder.redactor = await prepare_redactor((*secrets, *found))
        for produced, value in values:
            if value is None:
                reason = f"The response has no text at {produced.path}, which is stored as {produced.key}"
                raise ValueNotFound(reason)
        stored = []
        for produced, value in values:
            key = parse_header_key(produced.key, definition.service_name)
            # Skip redacted values. Only credentials that the ability has sent are redacted, and these are
            # stored already.
            if value is not None and key.host is not None and MARK not in value:
                try:
                    await self._vault.put_credential(user, key.host, produced.kind, key.name, value)
                except InvalidInput as error:
                    raise ValueNotFound(f"{produced.key} cannot be stored: {error.message}") from None
                stored.append(produced.key)
        builder.about["storedCredentials"] = stored
        return await builder.redact(mask_body(definition.produces, response.body))

    async def _log_in(
        self, call: _Call, wanted: Sequence[str], started: str
    ) -> list[RequestLogEntry] | LoginFailure | None:
        """Executes the dependency that produces one of the wanted credentials. Returns the requests of this
        login, a LoginFailure, or None if there is no such dependency.

        The login gets no parameters. If another call has logged in since `started`, this method executes
        nothing and returns an empty list.
        """
        for ability_id in call.definition.dependency_order:
            row = await self._store.abilities.get(ability_id, call.user.id)
            # Users do not call a login themselves, so use only logins that belong to the caller or to the
            # owner of the called ability, or that are shared with all users.
            if row is None or not (row.shared or row.owner_id in (call.user.id, call.owner_id)):
                continue
            login = decode_definition(row.document)
            if params_error(login.input_schema, {}) is not None:
                continue
            keys = [parse_header_key(each.key, login.service_name) for each in login.produces]
            produced = [key for key in keys if _key_text(key) in wanted]
            if not produced:
                continue
            lock = self._login_locks.setdefault((call.user.id, ability_id), asyncio.Lock())
            async with lock:
                stored = await self._store.credentials.for_domains(call.user.id, credential_domains(produced))
                names = {key.name.lower() for key in produced}
                if any(row.key.lower() in names and row.updated_at > started for row in stored):
                    return []
                ability_run = msgspec.structs.replace(call.ability_run, label=ability_id)
                login_call = msgspec.structs.replace(
                    call,
                    owner_id=row.owner_id,
                    definition=login,
                    params={},
                    transform_code=None,
                    ability_run=ability_run,
                )
                try:
                    response = await self._execute_once(login_call, None)
                except ApiError as error:
                    logger.info("the login %s failed: %s", ability_id, error.kind)
                    missing = error.extra if isinstance(error, MissingCredentials) else {}
                    return LoginFailure(ability_id, error.message, missing)
                if response.body.get("success") is not True:
                    return LoginFailure(ability_id, str(response.body.get("error", "")))
                return response.request_log
        return None

    async def _logins(self, definition: AbilityDefinition, user: User) -> list[Ability]:
        text = f"login {definition.service_name}"
        abilities = await self._store.abilities.search(user.id, text, MAX_LOGINS)
        return login_abilities(abilities, definition.service_name)


def _key_text(key: HeaderKey) -> str:
    """Returns a header key in a normalized form for comparisons."""
    return f"{key.host}::{key.name.lower()}"


def _missing_credentials(resolved: ResolvedHeaders, locked: Sequence[Secret]) -> str:
    names = ", ".join(key.text for key in resolved.missing)
    domains = ", ".join(dict.fromkeys(key.host for key in resolved.missing if key.host))
    advice = f"Store credentials for: {domains}" if domains else _NO_HOST
    message = f"Missing credentials for headers: {names}. {advice}"
    if locked:
        names = ", ".join(f"{secret.credential.domain}::{secret.credential.key}" for secret in locked)
        message += f". A client has encrypted {names}: send its key in {CREDENTIAL_KEY_HEADER}"
    return message
