/** Chart of wanted and running workers, one step per decision. */
import type { Decision } from "../../apiTypes";
import { readWorkerCount, STEPS_HEIGHT, STEPS_WIDTH, toSteps } from "../../autoscale";
import { formatExact } from "../../format";
import { Time } from "../Time";

export function WorkerChart({ decisions }: { decisions: readonly Decision[] }) {
  const steps = toSteps(decisions);
  return (
    <section class="card chart steps" aria-labelledby="steps-title">
      <header>
        <h2 id="steps-title">Workers</h2>
        <span class="quiet">from the decisions below</span>
      </header>
      <dl class="legend">
        <LegendEntry colour="--series-depth" label="Wanted" value={formatExact(decisions[0]?.wanted ?? null)} />
        {steps !== null && steps.workers !== "" && <LegendEntry colour="--series-running" label="Running" value={formatExact(decisions[0] === undefined ? null : readWorkerCount(decisions[0]))} />}
      </dl>
      {steps === null ? (
        <p class="quiet">The chart needs at least two decisions.</p>
      ) : (
        <>
          <div class="steps-box">
            <span class="steps-top quiet">{formatExact(steps.top)}</span>
            <span class="steps-zero quiet">0</span>
            <svg viewBox={`0 -4 ${STEPS_WIDTH} ${STEPS_HEIGHT + 8}`} preserveAspectRatio="none" role="img" aria-label={`Wanted workers, maximum ${formatExact(steps.top)}`} data-testid="steps">
              <path d={steps.workers} stroke="var(--series-running)" stroke-dasharray="5 4" />
              <path d={steps.wanted} stroke="var(--series-depth)" />
            </svg>
          </div>
          <p class="steps-times quiet">
            <Time iso={steps.from} />
            <Time iso={steps.until} />
          </p>
        </>
      )}
    </section>
  );
}

function LegendEntry({ colour, label, value }: { colour: `--${string}`; label: string; value: string }) {
  return (
    <div>
      <dt>
        <i style={{ background: `var(${colour})` }} aria-hidden="true" />
        {label}
      </dt>
      <dd>{value}</dd>
    </div>
  );
}
