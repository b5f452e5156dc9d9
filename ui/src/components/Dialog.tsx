/** Modal dialog that confirms an action, runs it, and stays open with the error if it fails. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, toApiError } from "../http";

interface Props {
  title: string;
  confirm: string;
  /** Label of the cancel button; null hides it. */
  cancel?: string | null;
  danger?: boolean;
  /** Run the action. The dialog closes when it resolves and shows the error when it rejects; `progress` shows a status text. */
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
      // Return focus to the opener once the dialog is removed, which blocks focus until then.
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
