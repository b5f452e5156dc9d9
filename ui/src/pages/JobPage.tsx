/** One job: where it stands, what it carries, how it failed. */
import { useState } from "preact/hooks";
import { cancelJob, redriveSome, showJob } from "../api";
import { UNKNOWN } from "../format";
import { ApiError } from "../http";
import { useLive, useTitle } from "../polling";
import { queueHref, tenantKey } from "../router";
import type { Job, JobState, Tenant } from "../apiTypes";
import { Dialog } from "../components/Dialog";
import { Fact, Facts } from "../components/FieldList";
import { EmptyNotice } from "../components/Notice";
import { PayloadView } from "../components/PayloadView";
import { Time } from "../components/Time";
import { Traceback } from "../components/Traceback";

const REFRESH_MS = 2000;

const MEANING: Record<JobState, string> = {
  cold: "waits in PostgreSQL",
  scheduled: "is not due yet",
  ready: "waits in Valkey",
  running: "a worker holds it",
  dead: "its last attempt failed",
  done: "acknowledged; nothing else is kept of it",
};

interface Props {
  tenant: Tenant;
  id: string;
  operate: boolean;
}

export function JobPage({ tenant, id, operate }: Props) {
  const found = useLive(`job ${tenantKey(tenant)} ${id}`, (signal) => load(tenant, id, signal), REFRESH_MS);
  useTitle(`${found.data?.job?.state ?? "Job"} · ${id} – Headrace`);
  const job = found.data?.job ?? null;
  return (
    <>
      <div class="heading">
        <h1 class="job-id">{id}</h1>
        {job !== null && operate && <JobActions job={job} onDone={found.refresh} />}
      </div>
      {found.data !== null && job === null && <EmptyNotice title="There is no such job">{found.data.why}</EmptyNotice>}
      {job !== null && <JobFacts job={job} />}
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

async function load(tenant: Tenant, id: string, signal: AbortSignal): Promise<{ job: Job | null; why: string }> {
  try {
    return { job: await showJob(tenant, id, signal), why: "" };
  } catch (cause) {
    if (cause instanceof ApiError && cause.status === 404) return { job: null, why: cause.detail };
    throw cause;
  }
}

function JobFacts({ job }: { job: Job }) {
  return (
    <section class="card">
      <Facts testId="job">
        <Fact label="State">
          <span class={`state ${job.state}`} data-testid="job-state">
            {job.state}
          </span>{" "}
          <span class="quiet">{MEANING[job.state]}</span>
        </Fact>
        <Fact label="Queue">{job.queue === null ? UNKNOWN : <a href={queueHref({ ...job, queue: job.queue })}>{job.queue}</a>}</Fact>
        <Fact label="Task">{job.task ?? UNKNOWN}</Fact>
        <Fact label="Flow">{job.flow === "" ? UNKNOWN : `${job.flow}${job.flow_type === "" ? "" : ` (${job.flow_type})`}`}</Fact>
        <Fact label="Attempts">{job.queue === null ? UNKNOWN : `${job.attempts} of ${job.max_attempts}`}</Fact>
        <Fact label="Priority">{job.queue === null ? UNKNOWN : job.priority}</Fact>
        <Fact label="Enqueued">
          <Time iso={job.enqueued_at} />
        </Fact>
        <Fact label="Due">
          <Time iso={job.due_at} />
        </Fact>
        <Fact label="Expires">{job.expires_at === null ? "never" : <Time iso={job.expires_at} />}</Fact>
      </Facts>
    </section>
  );
}

function JobActions({ job, onDone }: { job: Job; onDone: () => void }) {
  const [asking, setAsking] = useState(false);
  const close = () => {
    setAsking(false);
    onDone();
  };
  const { queue } = job;
  if (job.state === "dead" && queue !== null) {
    return (
      <div class="actions">
        <button type="button" class="button primary" data-testid="redrive-job" onClick={() => setAsking(true)}>
          Redrive
        </button>
        {asking && (
          <Dialog
            title="Redrive this job?"
            confirm="Redrive"
            act={async (signal) => {
              await redriveSome({ ...job, queue }, { ids: [job.id] }, null, signal);
            }}
            onClose={close}
          >
            It waits again, with all its attempts.
          </Dialog>
        )}
      </div>
    );
  }
  if (job.state !== "ready" && job.state !== "scheduled" && job.state !== "cold") return null;
  return (
    <div class="actions">
      <button type="button" class="button" data-testid="cancel-job" onClick={() => setAsking(true)}>
        Cancel job
      </button>
      {asking && (
        <Dialog title="Cancel this job?" confirm="Cancel the job" danger act={(signal) => cancelJob(job, job.id, signal)} onClose={close}>
          It is taken back and never runs. One that a worker has started meanwhile goes on.
        </Dialog>
      )}
    </div>
  );
}
