/** "Are you sure": says what will happen, does it, and stays open to tell when it failed. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { toApiError, type ApiError } from "../http";

interface Props {
  title: string;
  confirm: string;
  /** What the other button says; null: there is nothing to decide. */
  cancel?: string | null;
  danger?: boolean;
  /** Told in the dialog when it fails; closes it when it succeeds. Is given a way to say how far it is. */
  act: (signal: AbortSignal, progress: (text: string) => void) => Promise<void>;
  onClose: () => void;
  disabled?: boolean;
  children: ComponentChildren;
}

export function Dialog({ title, confirm, cancel = "Cancel", danger = false, act, onClose, disabled = false, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const stop = useRef<AbortController | null>(null);
  const [busy, setBusy] = useState(false);
  const [progress, setProgress] = useState("");
  const [failure, setFailure] = useState<ApiError | null>(null);

  useEffect(() => {
    const opener = document.activeElement;
    element.current?.showModal();
    return () => {
      stop.current?.abort();
      // The keyboard goes on where it was, once the dialog is gone and lets it.
      setTimeout(() => opener instanceof HTMLElement && opener.focus({ preventScroll: true }));
    };
  }, []);

  const submit = async (event: Event) => {
    event.preventDefault();
    const work = new AbortController();
    stop.current = work;
    setBusy(true);
    setFailure(null);
    try {
      await act(work.signal, setProgress);
      onClose();
    } catch (cause) {
      if (work.signal.aborted) return onClose();
      setFailure(toApiError(cause));
      setBusy(false);
    }
  };
  const close = () => (busy ? stop.current?.abort() : onClose());

  return (
    <dialog
      ref={element}
      class="dialog"
      aria-labelledby="dialog-title"
      data-testid="dialog"
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
    >
      <form onSubmit={(event) => void submit(event)}>
        <h2 id="dialog-title">{title}</h2>
        <div class="dialog-body">{children}</div>
        <p class="progress" role="status" data-testid="progress">
          {progress}
        </p>
        {failure !== null && (
          <p class="failure" role="alert" data-testid="failure">
            <strong>{failure.title}.</strong> {failure.detail}
          </p>
        )}
        <div class="dialog-buttons">
          {cancel !== null && (
            <button type="button" class="button" onClick={close}>
              {busy ? "Stop" : cancel}
            </button>
          )}
          <button type="submit" class={`button ${danger ? "danger" : "primary"}`} disabled={busy || disabled} data-testid="confirm">
            {busy ? "Working…" : confirm}
          </button>
        </div>
      </form>
    </dialog>
  );
}
