/** Queue actions for operators: pause, limit, redrive. Each opens a dialog that explains its effect. */
import { useState } from "preact/hooks";
import { changeSettings } from "../api";
import type { QueueState } from "../apiTypes";
import { formatCount } from "../format";
import { redriveAll } from "../redrive";
import { Dialog } from "./Dialog";

type Action = "pause" | "limit" | "redrive";

export function QueueActions({ state, onDone }: { state: QueueState; onDone: () => void }) {
  const [open, setOpen] = useState<Action | null>(null);
  const close = () => {
    setOpen(null);
    onDone();
  };
  return (
    <div class="actions" data-testid="actions">
      <button type="button" class="button" onClick={() => setOpen("pause")} data-testid="pause-queue">
        {state.paused ? "Resume queue" : "Pause queue"}
      </button>
      <button type="button" class="button" onClick={() => setOpen("limit")} data-testid="set-limit">
        Set limit
      </button>
      {state.dead > 0 && (
        <button type="button" class="button" onClick={() => setOpen("redrive")} data-testid="redrive">
          Redrive {formatCount(state.dead)} dead
        </button>
      )}
      {open === "pause" && <PauseDialog state={state} onClose={close} />}
      {open === "limit" && <LimitDialog state={state} onClose={close} />}
      {open === "redrive" && <RedriveDialog state={state} onClose={close} />}
    </div>
  );
}

function PauseDialog({ state, onClose }: { state: QueueState; onClose: () => void }) {
  const { paused } = state;
  return (
    <Dialog
      title={paused ? `Resume “${state.queue}”?` : `Pause “${state.queue}”?`}
      confirm={paused ? "Resume" : "Pause"}
      act={(signal) => changeSettings(state, { paused: !paused }, signal)}
      onClose={onClose}
    >
      {paused
        ? "Workers start its jobs again from now on."
        : "No jobs start until you resume the queue. Running jobs continue; new jobs are accepted and wait."}
    </Dialog>
  );
}

function LimitDialog({ state, onClose }: { state: QueueState; onClose: () => void }) {
  const [text, setText] = useState(state.limit === null ? "" : String(state.limit));
  const limit = text.trim() === "" ? null : Number(text);
  const valid = limit === null || (Number.isInteger(limit) && limit >= 0);
  return (
    <Dialog
      title={`Concurrency limit for “${state.queue}”`}
      confirm="Set limit"
      disabled={!valid}
      act={(signal) => changeSettings(state, { limit }, signal)}
      onClose={onClose}
    >
      <label class="field">
        Maximum number of running jobs (leave empty for no limit)
        <input type="number" min="0" step="1" inputMode="numeric" value={text} data-testid="limit" onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <p class="quiet">{formatCount(state.running)} running now. Lowering the limit does not stop running jobs.</p>
    </Dialog>
  );
}

function RedriveDialog({ state, onClose }: { state: QueueState; onClose: () => void }) {
  return (
    <Dialog
      title={`Redrive all dead jobs in “${state.queue}”?`}
      confirm={`Redrive ${formatCount(state.dead)}`}
      act={(signal, progress) => redriveAll(state, {}, signal, (done) => progress(`${done} of about ${state.dead} redriven`))}
      onClose={onClose}
    >
      The jobs are queued again with their attempts reset, oldest first. You can stop at any time; jobs already redriven stay queued.
    </Dialog>
  );
}
