/** Sign-in form for an API key. */
import { useState } from "preact/hooks";
import { type ApiError, toApiError } from "../http";
import { useTitle } from "../polling";
import { signIn } from "../session";
import { TitleBar } from "../components/TitleBar";

export function SignInPage({ onSignedIn }: { onSignedIn: () => void }) {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState<ApiError | null>(null);
  useTitle("Sign in – Headrace");

  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await signIn(key);
      onSignedIn();
    } catch (cause) {
      setRefused(toApiError(cause));
      setBusy(false);
    }
  };

  return (
    <>
      <TitleBar page={null} tenant={null}>
        {null}
      </TitleBar>
      <main id="main" class="page" tabIndex={-1}>
        <form class="notice sign-in" onSubmit={(event) => void submit(event)}>
          <h1>Sign in</h1>
          <label for="key">API key</label>
          <input
            id="key"
            type="password"
            autocomplete="current-password"
            placeholder="hr_…"
            required
            value={key}
            data-testid="key"
            onInput={(event) => setKey(event.currentTarget.value)}
          />
          <button type="submit" class="button primary" disabled={busy} data-testid="sign-in">
            Sign in
          </button>
          {refused !== null && (
            <p role="alert" class="failure" data-testid="refused">
              {refused.title}. {refused.detail}
            </p>
          )}
          <p class="quiet">
            <code>headrace keys create</code> creates a key; <code>headrace keys link</code> prints a one-time sign-in link.
          </p>
        </form>
      </main>
    </>
  );
}
