/** One ability. A user can run it; the operator sees its owner. */

import { post } from "../../api.ts";
import { visible } from "../../format.ts";
import { link } from "../../router.ts";
import { Age, Badge, Card, Json, Snippet } from "../../ui/basics.tsx";
import type { Schema } from "../../ui/schema_form.tsx";
import { CallForm } from "./call.tsx";

export interface Ability {
  id: string;
  name: string;
  service: string;
  description: string;
  version: number;
  shared: boolean;
  updatedAt: string;
  /** Name of the owner. Only the operator sees abilities of other users. */
  owner?: string | null;
  /** Set only for the user's own abilities, because only these can be run here. */
  inputSchema?: Schema;
}

export function AbilityDetail({ ability }: { ability: Ability }) {
  const { id, name, owner, inputSchema } = ability;
  const call = async (params: Record<string, unknown>) => {
    const body = await post(`/my/abilities/${encodeURIComponent(id)}/execute`, { params });
    return { result: body.result, runId: body.runId };
  };
  return (
    <Card
      title={<code>{visible(name)}</code>}
      actions={<a href={link(["runs"], { protocol: "abilities", label: `${id}*` })}>Its runs</a>}
    >
      {ability.description && <p class="description">{visible(ability.description)}</p>}
      <dl class="facts">
        <dt>Id</dt>
        <dd>
          <code>{visible(id)}</code>
        </dd>
        {owner && <dt>User</dt>}
        {owner && <dd>{visible(owner)}</dd>}
        <dt>Version</dt>
        <dd>
          {ability.version}, changed <Age time={ability.updatedAt} />
        </dd>
        <dt>Shared</dt>
        <dd>{ability.shared ? <Badge state="ok">with everyone</Badge> : "no"}</dd>
      </dl>
      {inputSchema
        ? (
          <>
            <CallForm schema={inputSchema} label="Run the ability" call={call} />
            <details>
              <summary>Schema</summary>
              <Json value={inputSchema} />
            </details>
          </>
        )
        : (
          <>
            <p class="quiet">
              An ability runs with the credentials of its user. To try it here, sign in with a key of that
              user.
            </p>
            <Snippet label="In a terminal" text={`hutch ability run ${id} --user ${owner} --params '{}'`} />
          </>
        )}
    </Card>
  );
}
