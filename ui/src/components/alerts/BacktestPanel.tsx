/** Button of the rule dialog that shows how often the rule would have fired in the last 24 hours. */
import { useEffect, useRef, useState } from "preact/hooks";
import { describeBacktest, formatMetricValue } from "../../alerts";
import { backtestRule, type RuleInput } from "../../alertsApi";
import type { Backtest, Tenant } from "../../apiTypes";
import { type ApiError, toApiError } from "../../http";
import { Time } from "../Time";

const SHOWN = 5;

interface Props {
  tenant: Tenant;
  /** The rule as the form has it; a changed rule needs a new panel. */
  fields: RuleInput;
}

export function BacktestPanel({ tenant, fields }: Props) {
  const [result, setResult] = useState<Backtest | null>(null);
  const [failure, setFailure] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);

  const run = async () => {
    const work = new AbortController();
    stop.current = work;
    setBusy(true);
    setFailure(null);
    try {
      setResult(await backtestRule(tenant, fields, work.signal));
    } catch (cause) {
      if (!work.signal.aborted) setFailure(toApiError(cause));
    } finally {
      setBusy(false);
    }
  };

  return (
    <div class="backtest">
      <button type="button" class="button small" disabled={busy} data-testid="backtest" onClick={() => void run()}>
        {busy ? "Checking…" : "Check the last 24 hours"}
      </button>
      <div role="status" data-testid="backtest-result">
        {result !== null && <p>{describeBacktest(result)}</p>}
        {result !== null && <BacktestIncidents result={result} />}
        {failure !== null && (
          <p class="failure">
            <strong>{failure.title}.</strong> {failure.detail}
          </p>
        )}
      </div>
    </div>
  );
}

function BacktestIncidents({ result }: { result: Backtest }) {
  const { incidents, condition, fired } = result;
  return (
    <ul>
      {incidents.slice(0, SHOWN).map(({ queue, fired_at, resolved_at, value }) => (
        <li key={`${fired_at} ${queue}`}>
          {queue !== null && `${queue}: `}
          {formatMetricValue(condition, value)}, <Time iso={fired_at} /> to {resolved_at === null ? "now" : <Time iso={resolved_at} />}
        </li>
      ))}
      {fired > SHOWN && <li class="quiet">and {fired - SHOWN} before</li>}
    </ul>
  );
}
