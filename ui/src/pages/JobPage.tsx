/** One job: state, payload, last error. */
import { useState } from "preact/hooks";
import { cancelJob, getJob, redriveBatch } from "../api";
import type { Job, JobState, Tenant } from "../apiTypes";
import { UNKNOWN } from "../format";
import { ApiError } from "../http";
import { usePolled, useTitle } from "../polling";
import { queueHref, tenantKey } from "../router";
import { Dialog } from "../components/Dialog";
import { FieldItem, FieldList } from "../components/FieldList";
import { EmptyNotice } from "../components/Notice";
import { PayloadView } from "../components/PayloadView";
import { Time } from "../components/Time";
import { Traceback } from "../components/Traceback";

const REFRESH_MS = 2000;

const STATE_DESCRIPTIONS: Record<JobState, string> = {
  cold: "waiting in PostgreSQL",
  scheduled: "not due yet",
  ready: "waiting in Valkey",
  running: "leased by a worker",
  dead: "failed permanently",
  done: "finished; only the id is kept",
};

interface Props {
  tenant: Tenant;
  id: string;
  operate: boolean;
}

export function JobPage({ tenant, id, operate }: Props) {
  const found = usePolled(`job ${tenantKey(tenant)} ${id}`, (signal) => loadJob(tenant, id, signal), REFRESH_MS);
  useTitle(`${found.data?.job?.state ?? "Job"} · ${id} – Headrace`);
  const job = found.data?.job ?? null;
  return (
    <>
      <div class="heading">
        <h1 class="job-id">{id}</h1>
        {job !== null && operate && <JobActions job={job} onDone={found.refresh} />}
      </div>
      {found.data !== null && job === null && <EmptyNotice title="Job not found">{found.data.reason}</EmptyNotice>}
      {job !== null && <JobFields job={job} />}
      {job?.error && (
        <section class="card">
          <h2>{job.state === "dead" ? "Error" : "Last failure"}</h2>
          <Traceback text={job.error} />
        </section>
      )}
      {job?.payload && (
        <section class="card">
          <PayloadView payload={job.payload} />
        </section>
      )}
    </>
  );
}

async function loadJob(tenant: Tenant, id: string, signal: AbortSignal): Promise<{ job: Job | null; reason: string }> {
  try {
    return { job: await getJob(tenant, id, signal), reason: "" };
  } catch (cause) {
    if (cause instanceof ApiError && cause.status === 404) return { job: null, reason: cause.detail };
    throw cause;
  }
}

function JobFields({ job }: { job: Job }) {
  return (
    <section class="card">
      <FieldList testId="job">
        <FieldItem label="State">
          <span class={`state ${job.state}`} data-testid="job-state">
            {job.state}
          </span>{" "}
          <span class="quiet">{job.cancel_requested ? "to be cancelled: its worker stops it" : STATE_DESCRIPTIONS[job.state]}</span>
        </FieldItem>
        <FieldItem label="Queue">{job.queue === null ? UNKNOWN : <a href={queueHref({ ...job, queue: job.queue })}>{job.queue}</a>}</FieldItem>
        <FieldItem label="Task">{job.task ?? UNKNOWN}</FieldItem>
        <FieldItem label="Flow">{job.flow === "" ? UNKNOWN : `${job.flow}${job.flow_type === "" ? "" : ` (${job.flow_type})`}`}</FieldItem>
        {job.progress !== null && <FieldItem label="Progress">{describeProgress(job.progress)}</FieldItem>}
        {Object.entries(job.headers).map(([name, value]) => (
          <FieldItem key={name} label={`Header ${name}`}>
            {value}
          </FieldItem>
        ))}
        <FieldItem label="Attempts">{job.queue === null ? UNKNOWN : `${job.attempts} of ${job.max_attempts}`}</FieldItem>
        <FieldItem label="Priority">{job.queue === null ? UNKNOWN : job.priority}</FieldItem>
        <FieldItem label="Enqueued">
          <Time iso={job.enqueued_at} />
        </FieldItem>
        <FieldItem label="Due">
          <Time iso={job.due_at} />
        </FieldItem>
        <FieldItem label="Expires">{job.expires_at === null ? "never" : <Time iso={job.expires_at} />}</FieldItem>
      </FieldList>
    </section>
  );
}

function describeProgress(progress: NonNullable<Job["progress"]>): string {
  if (typeof progress === "string") return progress;
  const { done, total, message } = progress;
  const count = total === undefined ? String(done ?? "") : `${String(done)} of ${String(total)}`;
  return [count, message === undefined ? "" : String(message)].filter((part) => part !== "").join(", ");
}

function JobActions({ job, onDone }: { job: Job; onDone: () => void }) {
  const [confirming, setConfirming] = useState(false);
  const close = () => {
    setConfirming(false);
    onDone();
  };
  const { queue } = job;
  if (job.state === "dead" && queue !== null) {
    return (
      <div class="actions">
        <button type="button" class="button primary" data-testid="redrive-job" onClick={() => setConfirming(true)}>
          Redrive
        </button>
        {confirming && (
          <Dialog
            title="Redrive this job?"
            confirm="Redrive"
            act={async (signal) => {
              await redriveBatch({ ...job, queue }, { ids: [job.id] }, null, signal);
            }}
            onClose={close}
          >
            The job is queued again with its attempts reset.
          </Dialog>
        )}
      </div>
    );
  }
  const running = job.state === "running";
  if (job.cancel_requested || (!running && job.state !== "ready" && job.state !== "scheduled" && job.state !== "cold")) return null;
  return (
    <div class="actions">
      <button type="button" class="button" data-testid="cancel-job" onClick={() => setConfirming(true)}>
        Cancel job
      </button>
      {confirming && (
        <Dialog title="Cancel this job?" confirm="Cancel job" cancel="Keep job" danger act={(signal) => cancelJob(job, job.id, running, signal)} onClose={close}>
          {running
            ? "Its worker stops it at the next heartbeat, and it is not retried. What the task has already done is not undone."
            : "The job will not run. If a worker has already started it, it continues."}
        </Dialog>
      )}
    </div>
  );
}
