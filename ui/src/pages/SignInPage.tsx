/** For those who are not signed in: one field for a key. */
import { useState } from "preact/hooks";
import { ApiError } from "../api";
import { TitleBar } from "../components/TitleBar";
import { signIn } from "../session";

export function SignInPage({ onSignedIn }: { onSignedIn: () => void }) {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState<ApiError | null>(null);

  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await signIn(key);
      onSignedIn();
    } catch (cause) {
      setRefused(cause instanceof ApiError ? cause : new ApiError("The dashboard failed", String(cause)));
      setBusy(false);
    }
  };

  return (
    <>
      <TitleBar>{null}</TitleBar>
      <main class="page">
        <form class="notice sign-in" onSubmit={(event) => void submit(event)}>
          <label for="key">
            <strong>Sign in with a key</strong>
          </label>
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
          <button type="submit" class="button" disabled={busy} data-testid="sign-in">
            Sign in
          </button>
          {refused !== null && (
            <p role="alert" data-testid="refused">
              {refused.title}. {refused.detail}
            </p>
          )}
          <p class="quiet">
            <code>headrace keys create</code> makes keys, <code>headrace keys link</code> a link that signs in by itself.
          </p>
        </form>
      </main>
    </>
  );
}
