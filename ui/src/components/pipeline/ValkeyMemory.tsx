/** Memory of the Valkey servers, and when it is full if it grows as in the last hour. */
import type { ValkeyServer } from "../../apiTypes";
import { formatBytes, formatExact, UNKNOWN } from "../../format";
import { describeForecast } from "../../pipeline";

export function ValkeyMemory({ servers }: { servers: readonly ValkeyServer[] | null }) {
  return (
    <section class="card list" aria-labelledby="memory-title">
      <header class="list-head">
        <h2 id="memory-title">Valkey memory</h2>
        <span class="quiet">forecast from the growth of the last hour</span>
      </header>
      <table class="table" data-testid="memory" data-rows={servers?.length ?? 0}>
        <thead>
          <tr>
            <th scope="col" class="text name">
              Shards
            </th>
            <th scope="col" class="number">
              Used
            </th>
            <th scope="col" class="number wide">
              Limit
            </th>
            <th scope="col" class="number">
              Full
            </th>
          </tr>
        </thead>
        <tbody>{servers === null ? <UnknownRow /> : servers.map((server) => <ServerRow key={server.name} server={server} />)}</tbody>
      </table>
    </section>
  );
}

/** Reserves the space of a server until it is known. */
function UnknownRow() {
  return (
    <tr>
      <td class="text name">{UNKNOWN}</td>
      <td class="number">{UNKNOWN}</td>
      <td class="number wide">{UNKNOWN}</td>
      <td class="number">{UNKNOWN}</td>
    </tr>
  );
}

function ServerRow({ server }: { server: ValkeyServer }) {
  const { text, note, tone } = describeForecast(server);
  return (
    <tr>
      <td class="text name">{server.name}</td>
      <td class="number" title={`${formatExact(server.used_bytes)} bytes`}>
        {formatBytes(server.used_bytes)}
      </td>
      <td class="number wide" title={server.max_bytes === null ? "maxmemory is not set" : `${formatExact(server.max_bytes)} bytes`}>
        {server.max_bytes === null ? "no maxmemory" : formatBytes(server.max_bytes)}
      </td>
      <td class="number" title={note} data-testid="full">
        <span class={tone === "plain" ? "" : "bad"}>{text}</span>
      </td>
    </tr>
  );
}
