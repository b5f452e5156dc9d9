/** One dead job: the last line of its error; expands to the traceback and the payload. */
import { useEffect, useState } from "preact/hooks";
import { getDeadJob, redriveBatch } from "../api";
import type { DeadJob, DeadJobDetail, QueueRef } from "../apiTypes";
import { type ApiError, toApiError } from "../http";
import { jobHref } from "../router";
import { Dialog } from "./Dialog";
import { PayloadView } from "./PayloadView";
import { Time } from "./Time";
import { Traceback } from "./Traceback";

interface Props {
  queueRef: QueueRef;
  job: DeadJob;
  operate: boolean;
  onRedriven: () => void;
}

export function DeadLetter({ queueRef, job, operate, onRedriven }: Props) {
  const [open, setOpen] = useState(false);
  const [confirming, setConfirming] = useState(false);
  return (
    <li class="letter">
      <div class="letter-head">
        <button type="button" class="disclosure" aria-expanded={open} data-testid="letter" onClick={() => setOpen(!open)}>
          <code class="error-line">{job.error === "" ? "no error recorded" : job.error}</code>
        </button>
        {operate && (
          <button type="button" class="button small" aria-label={`Redrive ${job.id}`} onClick={() => setConfirming(true)}>
            Redrive
          </button>
        )}
      </div>
      <p class="quiet facts">
        <span>{job.task}</span>
        <a href={jobHref(queueRef, job.id)}>{job.id}</a>
        <span>
          buried <Time iso={job.buried_at} />
        </span>
        <span>
          {job.attempts} of {job.max_attempts} attempts
        </span>
      </p>
      {open && <Detail queueRef={queueRef} id={job.id} />}
      {confirming && (
        <Dialog
          title="Redrive this job?"
          confirm="Redrive"
          act={async (signal) => {
            await redriveBatch(queueRef, { ids: [job.id] }, null, signal);
          }}
          onClose={() => {
            setConfirming(false);
            onRedriven();
          }}
        >
          {job.id} is queued again with its attempts reset.
        </Dialog>
      )}
    </li>
  );
}

function Detail({ queueRef, id }: { queueRef: QueueRef; id: string }) {
  const [found, setFound] = useState<DeadJobDetail | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    getDeadJob(queueRef, id, stop.signal).then(setFound, (cause: unknown) => {
      if (!stop.signal.aborted) setError(toApiError(cause));
    });
    return () => stop.abort();
  }, [id]);
  if (error !== null) {
    return (
      <p class="failure" role="alert">
        {error.title}. {error.detail}
      </p>
    );
  }
  return (
    <div class="letter-detail">
      <Traceback text={found?.error ?? null} />
      {found !== null && <PayloadView payload={found.payload} />}
    </div>
  );
}
