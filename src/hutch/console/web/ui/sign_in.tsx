/** The form for signing in. It covers the page, so that typed text is not lost. */

import { useState } from "preact/hooks";
import { signIn } from "../api.ts";
import { Button, ErrorNote, Field } from "./basics.tsx";

export function SignIn({ reason }: { reason?: string }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>();
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    setError(undefined);
    signIn({ key: key.trim() }).catch(setError);
  };
  return (
    <div class="overlay">
      <form class="card sign-in" onSubmit={submit} aria-label="Sign in">
        <img src="/assets/icon.svg" alt="" width="44" height="44" />
        <h1>Sign in to Hutch</h1>
        {reason && error === undefined && <p class="quiet">{reason}</p>}
        {error !== undefined && <ErrorNote error={error} />}
        <Field label="API key" hint="The operator's key, or a user's key that starts with hk_.">
          <input
            type="password"
            autocomplete="current-password"
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
            ref={(input) => {
              if (input && !input.value) input.focus();
            }}
          />
        </Field>
        <Button kind="primary" type="submit" disabled={!key.trim()}>Sign in</Button>
        <p class="quiet">
          Or run <code>hutch console</code> on the server's machine for a link that signs you in.
        </p>
      </form>
    </div>
  );
}
