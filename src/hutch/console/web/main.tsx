/** The web console: signs in, then shows the view that the URL names. */

import { effect, signal } from "@preact/signals";
import { render } from "preact";
import { ApiError, loadSession, offline, session, signIn } from "./api.ts";
import { location } from "./router.ts";
import { Layout } from "./ui/layout.tsx";
import { SignIn } from "./ui/sign_in.tsx";
import { View } from "./views/views.tsx";

// True once the user has signed in. It stays true after the session ends, so that the view stays and typed
// text is not lost.
const wasSignedIn = signal(false);
effect(() => {
  if (session.value?.signedIn) wasSignedIn.value = true;
});

function App() {
  const current = session.value;
  if (current === undefined) {
    return offline.value ? <p class="starting" role="alert">{offline.value} Retrying…</p> : null;
  }
  return (
    <>
      <Layout>{wasSignedIn.value && <View />}</Layout>
      {!current.signedIn && <SignIn reason={current.reason} />}
    </>
  );
}

/** Signs in if the address is a sign-in link. Returns false if it is not. */
async function redeemLink(): Promise<boolean> {
  const [view, token] = location.value.path;
  if (view !== "sign-in" || !token) return false;
  // Remove the token from the address and the history before anything else.
  history.replaceState(null, "", "#/");
  globalThis.dispatchEvent(new HashChangeEvent("hashchange"));
  try {
    await signIn({ link: token });
  } catch (error) {
    await loadSession();
    const current = session.value;
    if (current && !current.signedIn && error instanceof ApiError && error.status === 401) {
      session.value = { ...current, reason: error.message };
    }
  }
  return true;
}

async function start(): Promise<void> {
  if (!await redeemLink()) await loadSession();
}

const RETRY_MS = 1_000;

async function startUntilReachable(): Promise<void> {
  try {
    await start();
  } catch {
    setTimeout(startUntilReachable, RETRY_MS);
  }
}

render(<App />, document.getElementById("app")!);
startUntilReachable();
// A link that is pasted into an open tab changes only the fragment of its address.
globalThis.addEventListener("hashchange", () => redeemLink().catch(() => undefined));
