/** Autoscaler: worker types within the key's scope, with the wanted number of workers and the reason. */
import { listWorkerTypes } from "../api";
import type { Tenant } from "../apiTypes";
import { usePolled, useTitle } from "../polling";
import { href } from "../router";
import { WorkerTypes } from "../components/autoscaler/WorkerTypes";
import { WorkerTypeView } from "../components/autoscaler/WorkerTypeView";
import { EmptyNotice, LoadingNotice } from "../components/Notice";

const REFRESH_MS = 5000;

interface Props {
  /** Environment of the other pages; this page spans environments. */
  tenant: Tenant | null;
  params: URLSearchParams;
}

export function AutoscalerPage({ tenant, params }: Props) {
  const { data, error } = usePolled("autoscale", listWorkerTypes, REFRESH_MS);
  const chosen = params.get("type");
  const type = data?.find((each) => each.name === chosen) ?? null;
  useTitle("Autoscaler – Headrace");
  if (type !== null) return <WorkerTypeView key={type.name} tenant={tenant} type={type} changes={params.get("changes") === "only"} />;
  return (
    <>
      <div class="heading">
        <h1>Autoscaler</h1>
        <p class="quiet">The wanted number of workers per worker type, and the reason.</p>
      </div>
      {data === null && error === null && <LoadingNotice>Loading worker types…</LoadingNotice>}
      {data !== null && chosen !== null && (
        <EmptyNotice title="Worker type not found">
          “{chosen}” is no longer in the worker types file, or your key has no access to it. <a href={href({ name: "autoscaler" }, tenant)}>All worker types</a>
        </EmptyNotice>
      )}
      {data !== null && chosen === null && <WorkerTypes tenant={tenant} types={data} />}
    </>
  );
}
