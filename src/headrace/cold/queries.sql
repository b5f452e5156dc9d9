-- Queues -------------------------------------------------------------------------------------------------------------

-- name: add_queue
-- Add a queue of `shard`, and the row in cold_movers that its movers lock. Does nothing if the queue exists.
WITH added AS (
  INSERT INTO cold_queues (shard, org, project, env, queue)
  VALUES (%(shard)s, %(org)s, %(project)s, %(env)s, %(queue)s)
  ON CONFLICT DO NOTHING
  RETURNING id
)
INSERT INTO cold_movers (queue_id) SELECT id FROM added

-- name: find_queue
-- Return the id of a queue. No row: no job of the queue was ever stored here.
SELECT id FROM cold_queues WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND queue = %(queue)s

-- name: raise_version
-- Raise the version of a queue's counters above `known`, the version that Valkey has. It has a later one after
-- PostgreSQL was restored to an earlier point.
UPDATE cold_queues SET version = greatest(version, %(known)s) + 1 WHERE id = %(queue_id)s

-- name: list_queues
-- Return every queue of `shard`. Ordered by id.
SELECT id, org, project, env, queue FROM cold_queues WHERE shard = %(shard)s ORDER BY id

-- name: list_queues_with_work
-- Return the queues of `shard` that have work for a mover: rows that wait, a delayed row that is due by `until` (ms),
-- or a delayed row that expired by `now` (ms). Reads only the first row of each index. Ordered by id.
SELECT id, org, project, env, queue FROM cold_queues q
WHERE shard = %(shard)s AND (
  waiting > 0
  OR (delayed > 0 AND %(until)s >= (
    SELECT due_ms FROM cold_queue_entries e WHERE e.queue_id = q.id AND e.delayed ORDER BY due_ms LIMIT 1))
  OR (delayed > 0 AND %(now)s >= (
    SELECT expires_ms FROM cold_queue_entries e WHERE e.queue_id = q.id AND expires_ms IS NOT NULL
    ORDER BY expires_ms LIMIT 1))
)
ORDER BY id

-- name: list_queues_with_old_dead
-- Return the queues of `shard` whose oldest dead job was buried before `before_ms`. Ordered by id.
SELECT id, org, project, env, queue FROM cold_queues q
WHERE shard = %(shard)s AND dead > 0 AND %(before_ms)s::bigint > (
  SELECT buried_ms FROM dead_jobs d WHERE d.queue_id = q.id ORDER BY buried_ms, seq LIMIT 1)
ORDER BY id

-- name: read_counters
-- Return the counters of one queue, with the columns of update_counters.
SELECT valkey_epoch, version, epoch, waiting, delayed, waiting_bytes + delayed_bytes AS bytes, dead,
  spilled - spilled_then AS spilled, expired - expired_then AS expired, cancelled - cancelled_then AS cancelled,
  redriven - redriven_then AS redriven
FROM cold_queues WHERE id = %(queue_id)s

-- name: repeatable_read
-- Let all statements of this transaction read the database as of one moment.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: read_epoch
-- Return the epoch and the names of a queue: they tell why update_counters returned no row.
SELECT epoch, org, project, env, queue FROM cold_queues WHERE id = %(queue_id)s

-- name: lock_mover
-- Lock the row of a queue in cold_movers until the transaction ends: no other process moves, cancels or redrives jobs
-- of the queue. Returns the version of its counters and its names.
SELECT q.version, q.org, q.project, q.env, q.queue FROM cold_movers m JOIN cold_queues q ON q.id = m.queue_id
WHERE m.queue_id = %(queue_id)s FOR UPDATE OF m

-- name: lock_queue
-- Lock the counters of a queue until the transaction ends, so that producers cannot spill either. Returns its epoch.
SELECT epoch FROM cold_queues WHERE id = %(queue_id)s FOR UPDATE

-- name: update_counters
-- Add to the counters of a queue, raise its version, and return the counters for Valkey with the transaction id and the
-- id of this PostgreSQL. All counters are parameters; `*_bytes` are payload bytes. No row is returned, and nothing
-- changed, if the id belongs to another queue than `org`, `project`, `env`, `queue` (NULL: not checked), if `epoch` is
-- closed (NULL: not checked), or if the queue would then hold more than `max_items` rows or `max_bytes` bytes (NULL: no
-- limit). `close`: the epoch to close, with all before it (NULL: none). `valkey_epoch`: the epoch of the queue in
-- Valkey (NULL: unchanged); the totals that are returned count from the time when it last changed.
UPDATE cold_queues SET
  version = version + 1,
  epoch = CASE WHEN %(close)s::bigint IS NULL THEN greatest(epoch, %(epoch)s::bigint)
    ELSE greatest(epoch, %(close)s::bigint) + 1 END,
  waiting = waiting + %(waiting)s,
  waiting_bytes = waiting_bytes + %(waiting_bytes)s,
  delayed = delayed + %(delayed)s,
  delayed_bytes = delayed_bytes + %(delayed_bytes)s,
  dead = dead + %(dead)s,
  spilled = spilled + %(spilled)s,
  redriven = redriven + %(redriven)s,
  refilled = refilled + %(refilled)s,
  expired = expired + %(expired)s,
  cancelled = cancelled + %(cancelled)s,
  quarantined = quarantined + %(quarantined)s,
  removed = removed + %(removed)s,
  valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch),
  spilled_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN spilled_then ELSE spilled END,
  redriven_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN redriven_then ELSE redriven END,
  expired_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN expired_then ELSE expired END,
  cancelled_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN cancelled_then ELSE cancelled END
WHERE id = %(queue_id)s AND (%(org)s::text IS NULL OR (org, project, env, queue) = (%(org)s, %(project)s, %(env)s, %(queue)s))
  AND (%(epoch)s::bigint IS NULL OR epoch <= %(epoch)s::bigint)
  AND (%(max_items)s::bigint IS NULL OR waiting + delayed + %(waiting)s + %(delayed)s <= %(max_items)s::bigint)
  AND (%(max_bytes)s::bigint IS NULL
    OR waiting_bytes + delayed_bytes + %(waiting_bytes)s + %(delayed_bytes)s <= %(max_bytes)s::bigint)
RETURNING valkey_epoch, version, epoch, waiting, delayed, waiting_bytes + delayed_bytes AS bytes, dead,
  spilled - spilled_then AS spilled, expired - expired_then AS expired, cancelled - cancelled_then AS cancelled,
  redriven - redriven_then AS redriven, pg_current_xact_id()::text::bigint AS xact,
  (SELECT i.id::text FROM cold_identity i) AS postgres_id

-- Spill --------------------------------------------------------------------------------------------------------------

-- name: copy_rows
-- Insert rows with COPY in binary format. `copy_rows` in store.py writes the columns in this order.
COPY cold_queue_entries (queue_id, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms,
  due_ms, expires_ms, delayed)
FROM STDIN (FORMAT binary)

-- name: insert_spill
-- Store the id of a spill, so that its producer can find out whether the commit succeeded, and return the quotas of
-- cold jobs and bytes of an environment: its own, those of its project and organisation, and the defaults.
WITH remembered AS (INSERT INTO cold_spills (id) VALUES (%(id)s))
SELECT org, project, env, name, value FROM quotas
WHERE name IN ('cold_jobs', 'cold_bytes') AND org IN ('', %(org)s) AND project IN ('', %(project)s) AND env IN ('', %(env)s)

-- name: find_spill
-- Return one row if the spill `id` was committed, for an hour afterwards.
SELECT 1 FROM cold_spills WHERE id = %(id)s

-- name: find_duplicate_ids
-- Return those of the job `ids` that a queue holds already.
SELECT job_id FROM cold_queue_entries WHERE queue_id = %(queue_id)s AND job_id = ANY(%(ids)s)

-- name: delete_old_spills
-- Delete the ids of spills older than an hour.
DELETE FROM cold_spills WHERE at < now() - interval '1 hour'

-- Refill -------------------------------------------------------------------------------------------------------------

-- name: claim
-- Return the next rows of a queue in the order in which they run: at most `most`, and only as long as the rows before
-- take less than `bytes` bytes, so that the first is returned however large it is. One walk along the index and no
-- join, so that there is no other plan to choose.
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY priority DESC, due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM cold_queue_entries
    WHERE queue_id = %(queue_id)s AND NOT delayed
    ORDER BY priority DESC, due_ms, seq
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY priority DESC, due_ms, seq

-- name: claim_unplaced
-- Like claim, without the rows `placed` (numbers of rows whose jobs are in Valkey already).
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY priority DESC, due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM cold_queue_entries
    WHERE queue_id = %(queue_id)s AND NOT delayed AND seq <> ALL(%(placed)s::bigint[])
    ORDER BY priority DESC, due_ms, seq
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY priority DESC, due_ms, seq

-- name: claim_after
-- Like claim, behind the position `priority`, `due_ms`, `seq`: the rest of its priority, then the lower ones. Each part
-- is one walk along the index.
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY priority DESC, due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM (
      (
        SELECT * FROM cold_queue_entries
        WHERE queue_id = %(queue_id)s AND NOT delayed AND priority = %(priority)s
          AND (due_ms, seq) > (%(due_ms)s::double precision, %(seq)s::bigint)
        ORDER BY priority DESC, due_ms, seq
        LIMIT %(most)s
      )
      UNION ALL
      (
        SELECT * FROM cold_queue_entries
        WHERE queue_id = %(queue_id)s AND NOT delayed AND priority < %(priority)s
        ORDER BY priority DESC, due_ms, seq
        LIMIT %(most)s
      )
    ) both_parts
    ORDER BY priority DESC, due_ms, seq
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY priority DESC, due_ms, seq

-- name: claim_delayed
-- Return delayed rows of a queue that are due by `until` (ms), earliest first, limited by `most` and `bytes` like
-- claim, without the rows `placed`.
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM cold_queue_entries
    WHERE queue_id = %(queue_id)s AND delayed AND due_ms <= %(until)s AND seq <> ALL(%(placed)s::bigint[])
    ORDER BY due_ms
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY due_ms, seq

-- name: delete_rows
-- Delete the rows with the numbers `seqs`.
DELETE FROM cold_queue_entries WHERE seq = ANY(%(seqs)s)

-- name: delete_placed_rows
-- Delete rows whose jobs are in Valkey, and return them for the counters. A row must match its number and its job id: a
-- PostgreSQL that was restored to an earlier point uses numbers again, for other jobs. An empty job id (placed by an
-- earlier release) is not compared.
DELETE FROM cold_queue_entries e
USING unnest(%(seqs)s::bigint[], %(job_ids)s::text[]) AS placed (seq, job_id)
WHERE e.seq = placed.seq AND e.queue_id = %(queue_id)s AND (placed.job_id = '' OR e.job_id = placed.job_id)
RETURNING e.seq, e.task, e.flow, e.flow_type, e.size, e.delayed

-- name: quarantine
-- Move the rows `seqs` into quarantine, each with its reason from `reasons`.
WITH gone AS (DELETE FROM cold_queue_entries WHERE seq = ANY(%(seqs)s) RETURNING *)
INSERT INTO cold_quarantine
SELECT gone.*, reasons.reason FROM gone
JOIN unnest(%(seqs)s::bigint[], %(reasons)s::text[]) AS reasons (seq, reason) USING (seq)

-- name: count_quarantine
-- Count the rows in quarantine.
SELECT count(*) FROM cold_quarantine

-- name: expire_rows
-- Delete at most `most` rows that expired by `now` (ms), without the rows `placed` (numbers of rows whose jobs are in
-- Valkey), and return them for the counters. `now` has a fraction: compared without the cast, it would turn every
-- expires_ms into a double and leave the index unused.
DELETE FROM cold_queue_entries
WHERE seq IN (
  SELECT seq FROM cold_queue_entries
  WHERE queue_id = %(queue_id)s AND expires_ms <= floor(%(now)s::double precision)::bigint AND seq <> ALL(%(placed)s::bigint[])
  ORDER BY expires_ms
  LIMIT %(most)s
)
RETURNING seq, task, flow, flow_type, size, delayed

-- name: promote_due_rows
-- Make at most `most` delayed rows that are due by `until` (ms) wait like the others, without the rows `placed`, and
-- return them for the counters.
UPDATE cold_queue_entries SET delayed = false
WHERE seq IN (
  SELECT seq FROM cold_queue_entries
  WHERE queue_id = %(queue_id)s AND delayed AND due_ms <= %(until)s AND seq <> ALL(%(placed)s::bigint[])
  ORDER BY due_ms
  LIMIT %(most)s
)
RETURNING task, flow, flow_type, size

-- name: find_oldest_due
-- Return when the longest-waiting row of a queue became due (ms), NULL if none waits. Reads the first row of each
-- priority.
WITH RECURSIVE heads AS (
  (SELECT priority, due_ms FROM cold_queue_entries WHERE queue_id = %(queue_id)s AND NOT delayed
   ORDER BY priority DESC, due_ms, seq LIMIT 1)
  UNION ALL
  SELECT next.priority, next.due_ms FROM heads, LATERAL (
    SELECT e.priority, e.due_ms FROM cold_queue_entries e
    WHERE e.queue_id = %(queue_id)s AND NOT e.delayed AND e.priority < heads.priority
    ORDER BY e.priority DESC, e.due_ms, e.seq LIMIT 1
  ) next
)
SELECT min(due_ms) FROM heads

-- name: disable_synchronous_commit
-- Let the commit of this transaction not wait for the disk: one that only places rows changes nothing but the lock it
-- holds.
SET LOCAL synchronous_commit = off

-- name: reset_synchronous_commit
-- Let the commit of this transaction wait for the disk after all: it deletes something.
RESET synchronous_commit

-- name: list_due_times
-- Return when delayed rows are due (ms), per queue: rows due by `until` (ms), the first `most` of each queue.
SELECT q.org, q.project, q.env, q.queue, e.due_ms
FROM cold_queues q
CROSS JOIN LATERAL (
  SELECT due_ms FROM cold_queue_entries
  WHERE queue_id = q.id AND delayed AND due_ms <= %(until)s
  ORDER BY due_ms
  LIMIT %(most)s
) e
WHERE q.delayed > 0

-- Single jobs --------------------------------------------------------------------------------------------------------

-- name: find_waiting_job
-- Find a job that waits, by its id in an environment, with its payload.
SELECT e.seq, q.id AS queue_id, q.org, q.project, q.env, q.queue, e.job_id, e.task, e.flow,
  e.flow_type, e.payload, e.size, e.priority, 0 AS attempts, e.max_attempts, e.enqueued_ms,
  e.due_ms, e.expires_ms, e.delayed, NULL AS error
FROM cold_queue_entries e JOIN cold_queues q ON q.id = e.queue_id
WHERE e.job_id = %(job_id)s AND q.org = %(org)s AND q.project = %(project)s AND q.env = %(env)s
ORDER BY e.seq
LIMIT 1

-- name: find_dead_job
-- Find the newest dead job with an id in an environment, with its payload. The columns are those of find_waiting_job;
-- due_ms is 0.
SELECT d.seq, q.id AS queue_id, q.org, q.project, q.env, q.queue, d.job_id, d.task, d.flow,
  d.flow_type, d.payload, d.size, d.priority, d.attempts, d.max_attempts, d.enqueued_ms,
  0::double precision AS due_ms, NULL::bigint AS expires_ms, false AS delayed, d.error
FROM dead_jobs d JOIN cold_queues q ON q.id = d.queue_id
WHERE d.job_id = %(job_id)s AND q.org = %(org)s AND q.project = %(project)s AND q.env = %(env)s
ORDER BY d.buried_ms DESC
LIMIT 1

-- Dead jobs ----------------------------------------------------------------------------------------------------------

-- name: insert_dead_job
-- Store a dead job. Does nothing if this death of the job (its id and `buried_ms`) is stored already.
INSERT INTO dead_jobs (queue_id, job_id, task, flow, flow_type, payload, size, priority, attempts, max_attempts,
  enqueued_ms, buried_ms, error)
VALUES (%(queue_id)s, %(job_id)s, %(task)s, %(flow)s, %(flow_type)s, %(payload)s, %(size)s,
  %(priority)s, %(attempts)s, %(max_attempts)s, %(enqueued_ms)s, %(buried_ms)s, %(error)s)
ON CONFLICT DO NOTHING

-- name: list_dead
-- Return dead jobs of a queue, newest first, buried in `from_ms` to `until_ms` (inclusive; NULL: no bound), after the
-- position `after_ms`, `after_id` (NULL: from the newest). Reads at most `scan` rows. A row without the task `task` or
-- the text `error` in its error (empty: any) is returned with matches = false and without task and error, so that the
-- caller can continue after the last row.
SELECT job_id, buried_ms, matches, CASE WHEN matches THEN task ELSE '' END AS task, flow, flow_type, size, priority,
  attempts, max_attempts, enqueued_ms, CASE WHEN matches THEN error ELSE '' END AS error
FROM (
  SELECT *, (%(task)s = '' OR task = %(task)s) AND (%(error)s = '' OR position(%(error)s IN error) > 0) AS matches
  FROM (
    SELECT * FROM dead_jobs
    WHERE queue_id = %(queue_id)s
      AND (%(from_ms)s::bigint IS NULL OR buried_ms >= %(from_ms)s::bigint)
      AND (%(until_ms)s::bigint IS NULL OR buried_ms <= %(until_ms)s::bigint)
      AND (%(after_ms)s::bigint IS NULL
        OR (buried_ms, job_id COLLATE "C") < (%(after_ms)s::bigint, %(after_id)s::text))
    ORDER BY buried_ms DESC, job_id COLLATE "C" DESC
    LIMIT %(scan)s
  ) looked_at
) judged
ORDER BY buried_ms DESC, job_id COLLATE "C" DESC

-- name: find_dead_in_queue
-- Return the newest death of one job in a queue, with the first `payload_bytes` bytes of its payload.
SELECT job_id, buried_ms, true AS matches, task, flow, flow_type, size, priority, attempts, max_attempts, enqueued_ms,
  error, substring(payload FROM 1 FOR %(payload_bytes)s) AS payload
FROM dead_jobs WHERE queue_id = %(queue_id)s AND job_id = %(job_id)s
ORDER BY buried_ms DESC
LIMIT 1

-- name: delete_dead
-- Delete at most `most` dead jobs of a queue, oldest first: with these `ids` (NULL: any), this `task` and `error` text
-- (empty: any), buried in `from_ms` to `until_ms` (NULL: no bound).
DELETE FROM dead_jobs WHERE seq IN (
  SELECT seq FROM dead_jobs
  WHERE queue_id = %(queue_id)s
    AND (%(ids)s::text[] IS NULL OR job_id = ANY(%(ids)s::text[]))
    AND (%(task)s = '' OR task = %(task)s)
    AND (%(error)s = '' OR position(%(error)s IN error) > 0)
    AND (%(from_ms)s::bigint IS NULL OR buried_ms >= %(from_ms)s::bigint)
    AND (%(until_ms)s::bigint IS NULL OR buried_ms <= %(until_ms)s::bigint)
  ORDER BY buried_ms, seq
  LIMIT %(most)s
)

-- name: redrive_dead
-- Make at most `most` dead jobs of a queue wait again with all their attempts, in the order in which they were buried,
-- due at `now` (ms), and return them for the counters. Filters as in delete_dead. Of a job that died twice, only the
-- newest death is redriven; a job that waits here already stays dead.
WITH chosen AS (
  SELECT seq FROM dead_jobs d
  WHERE queue_id = %(queue_id)s
    AND (%(ids)s::text[] IS NULL OR job_id = ANY(%(ids)s::text[]))
    AND (%(task)s = '' OR task = %(task)s)
    AND (%(error)s = '' OR position(%(error)s IN error) > 0)
    AND (%(from_ms)s::bigint IS NULL OR buried_ms >= %(from_ms)s::bigint)
    AND (%(until_ms)s::bigint IS NULL OR buried_ms <= %(until_ms)s::bigint)
    AND NOT EXISTS (SELECT 1 FROM cold_queue_entries e WHERE e.job_id = d.job_id AND e.queue_id = d.queue_id)
    AND NOT EXISTS (SELECT 1 FROM dead_jobs n
      WHERE n.job_id = d.job_id AND n.queue_id = d.queue_id AND n.buried_ms > d.buried_ms)
  ORDER BY buried_ms, seq
  LIMIT %(most)s
), gone AS (
  DELETE FROM dead_jobs WHERE seq IN (SELECT seq FROM chosen) RETURNING *
)
INSERT INTO cold_queue_entries (queue_id, job_id, task, flow, flow_type, payload, size, priority, max_attempts,
  enqueued_ms, due_ms, delayed)
SELECT queue_id, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms,
  %(now)s + (row_number() OVER (ORDER BY buried_ms, seq) - 1) / 4096.0, false
FROM gone
ORDER BY buried_ms, seq
RETURNING task, flow, flow_type, size

-- Waiting jobs per task, flow and flow type --------------------------------------------------------------------------

-- name: add_flow_counts
-- Add `counts` to the numbers of waiting rows of a queue, one per entry of the arrays `tasks`, `flows` and
-- `flow_types`.
INSERT INTO cold_details (queue_id, task, flow, flow_type, waiting)
SELECT %(queue_id)s, * FROM unnest(%(tasks)s::text[], %(flows)s::text[], %(flow_types)s::text[], %(counts)s::bigint[])
ORDER BY 2, 3, 4 -- one lock order, so that producers cannot deadlock
ON CONFLICT (queue_id, task, flow, flow_type) DO UPDATE SET waiting = cold_details.waiting + excluded.waiting

-- name: list_flow_depths
-- Return per queue, task, flow and flow type how many rows wait and since when the oldest is due (ms). `org`,
-- `project`, `env` and `queue` select queues; NULL matches all.
SELECT q.org, q.project, q.env, q.queue, d.task, d.flow, d.flow_type, d.waiting, (
    SELECT e.due_ms FROM cold_queue_entries e
    WHERE e.queue_id = d.queue_id AND NOT e.delayed AND e.task = d.task AND e.flow = d.flow AND e.flow_type = d.flow_type
    ORDER BY e.due_ms LIMIT 1
  ) AS oldest_ms
FROM cold_details d JOIN cold_queues q ON q.id = d.queue_id
WHERE d.waiting > 0
  AND (%(org)s::text IS NULL OR q.org = %(org)s::text) AND (%(project)s::text IS NULL OR q.project = %(project)s::text)
  AND (%(env)s::text IS NULL OR q.env = %(env)s::text)
  AND (%(queue)s::text IS NULL OR q.queue = %(queue)s::text)
ORDER BY 1, 2, 3, 4, 5, 6, 7

-- name: delete_empty_flow_counts
-- Delete up to 1000 counts that are 0, without those that a producer is about to raise.
DELETE FROM cold_details WHERE ctid IN (
  SELECT ctid FROM cold_details WHERE waiting = 0 LIMIT 1000 FOR UPDATE SKIP LOCKED
)

-- Settings of queues and environments --------------------------------------------------------------------------------

-- name: put_setting
-- Store a setting of a queue (an empty `queue`: of the environment). A setting that was removed stays with an empty
-- value, so that it is removed from Valkey too when Valkey's copy is restored.
INSERT INTO queue_settings (org, project, env, queue, name, value)
VALUES (%(org)s, %(project)s, %(env)s, %(queue)s, %(name)s, %(value)s)
ON CONFLICT (org, project, env, queue, name) DO UPDATE SET value = excluded.value, changed_at = now()

-- name: list_settings
-- Return all settings that were ever made; an empty value: removed.
SELECT org, project, env, queue, name, value FROM queue_settings ORDER BY 1, 2, 3, 4, 5

-- name: lock_setting
-- Return the value of a setting, and lock it until the transaction ends.
SELECT value FROM queue_settings
WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND queue = %(queue)s AND name = %(name)s
FOR UPDATE

-- Audit --------------------------------------------------------------------------------------------------------------

-- name: compare_counters
-- Return what must be added to the counters of a queue so that they agree with its rows; `unaccounted` is the number of
-- rows that entered by the totals and neither left nor wait.
SELECT rows.waiting - q.waiting AS waiting, rows.waiting_bytes - q.waiting_bytes AS waiting_bytes,
  rows.delayed - q.delayed AS delayed, rows.delayed_bytes - q.delayed_bytes AS delayed_bytes,
  (SELECT count(*) FROM dead_jobs d WHERE d.queue_id = q.id) - q.dead AS dead,
  q.spilled + q.redriven - q.refilled - q.expired - q.cancelled - q.quarantined - q.waiting - q.delayed AS unaccounted
FROM cold_queues q, LATERAL (
  SELECT count(*) FILTER (WHERE NOT delayed) AS waiting,
    coalesce(sum(size) FILTER (WHERE NOT delayed), 0)::bigint AS waiting_bytes,
    count(*) FILTER (WHERE delayed) AS delayed, coalesce(sum(size) FILTER (WHERE delayed), 0)::bigint AS delayed_bytes
  FROM cold_queue_entries e WHERE e.queue_id = q.id
) rows
WHERE q.id = %(queue_id)s

-- name: compare_flow_counts
-- Return what must be added to the counts of a queue per task, flow and flow type so that they agree with its rows;
-- only where they differ.
SELECT task, flow, flow_type, coalesce(rows.waiting, 0) - coalesce(d.waiting, 0) AS missing
FROM (SELECT * FROM cold_details WHERE queue_id = %(queue_id)s) d
FULL JOIN (
  SELECT task, flow, flow_type, count(*) AS waiting FROM cold_queue_entries
  WHERE queue_id = %(queue_id)s AND NOT delayed GROUP BY 1, 2, 3
) rows USING (task, flow, flow_type)
WHERE coalesce(rows.waiting, 0) <> coalesce(d.waiting, 0)

-- Quotas -------------------------------------------------------------------------------------------------------------

-- name: find_quotas
-- Return the quotas `names` that apply to a tenant: its own, those of its project and organisation, and the defaults.
SELECT org, project, env, name, value FROM quotas
WHERE name = ANY(%(names)s) AND org IN ('', %(org)s) AND project IN ('', %(project)s) AND env IN ('', %(env)s)

-- name: list_quotas
-- Return all quotas.
SELECT org, project, env, name, value FROM quotas ORDER BY 1, 2, 3, 4

-- name: list_tenant_quotas
-- Return the quotas that are set for exactly this tenant.
SELECT name, value FROM quotas WHERE org = %(org)s AND project = %(project)s AND env = %(env)s

-- name: put_quota
-- Set a quota of a tenant; a NULL `value` means no quota, whatever the default is.
INSERT INTO quotas (org, project, env, name, value) VALUES (%(org)s, %(project)s, %(env)s, %(name)s, %(value)s)
ON CONFLICT (org, project, env, name) DO UPDATE SET value = excluded.value, changed_at = now()

-- name: delete_quota
-- Delete a quota of a tenant, so that the default applies.
DELETE FROM quotas WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND name = %(name)s

-- name: lock_quota
-- Let one transaction at a time count what `tenant` (its names, separated by newlines) uses and add to it.
SELECT pg_advisory_xact_lock(hashtextextended(%(tenant)s, 5021945))

-- name: read_cold_use
-- Return how many rows and payload bytes a tenant has in PostgreSQL. An empty `project` or `env` matches all.
SELECT coalesce(sum(waiting + delayed), 0)::bigint AS cold_jobs,
  coalesce(sum(waiting_bytes + delayed_bytes), 0)::bigint AS cold_bytes
FROM cold_queues
WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s)

-- name: has_shares
-- Return whether one of the quotas `names` is set for a project or organisation, or shares of one are left.
SELECT EXISTS (SELECT 1 FROM quotas WHERE org <> '' AND env = '' AND name = ANY(%(names)s))
  OR EXISTS (SELECT 1 FROM quota_shares)

-- name: start_round
-- Start the next round of sharing out quotas and return its number; locks rounds until the transaction ends. The number
-- is at least the time in ms, so that a PostgreSQL that was restored to an earlier point continues above the numbers
-- that Valkey has seen.
UPDATE quota_rounds SET round = greatest(round + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) RETURNING round

-- name: list_shares
-- Return the shares of all environments in the quotas of their projects and organisations.
SELECT org, project, env, name, value FROM quota_shares

-- name: put_share
-- Set the share of an environment in a quota.
INSERT INTO quota_shares (org, project, env, name, value) VALUES (%(org)s, %(project)s, %(env)s, %(name)s, %(value)s)
ON CONFLICT (org, project, env, name) DO UPDATE SET value = excluded.value

-- name: delete_share
-- Delete the share of an environment in a quota.
DELETE FROM quota_shares WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND name = %(name)s

-- Which PostgreSQL this is, and events of servers --------------------------------------------------------------------

-- name: read_identity
-- Return the id of this PostgreSQL, which its copies share.
SELECT id::text FROM cold_identity

-- name: read_timeline
-- Return the system identifier and timeline, which change when a standby is promoted or a backup is recovered to a
-- point in time.
SELECT s.system_identifier::text || '/' || c.timeline_id::text FROM pg_control_system() s, pg_control_checkpoint() c

-- name: insert_server_event
-- Store an event of a server and return its id.
INSERT INTO server_events (server, shard, kind, description)
VALUES (%(server)s, %(shard)s, %(kind)s, %(description)s) RETURNING id

-- name: insert_server_event_loss
-- Store how many accepted jobs of a queue are missing since an event.
INSERT INTO server_event_losses (event_id, org, project, env, queue, missing)
VALUES (%(event_id)s, %(org)s, %(project)s, %(env)s, %(queue)s, %(missing)s)

-- name: list_server_events
-- Return the newest `most` events of servers of the last `within_s` seconds (NULL: ever), newest first: one row per
-- event and queue that lost jobs, largest loss first, at most `most_losses` per event (NULL: all), and one row without
-- a queue if none did. `org`, `project` and `env` select queues (NULL: all); the totals also count those beyond the
-- limit.
SELECT e.id, e.noticed_at, e.server, e.shard, e.kind, e.description, coalesce(l.all_missing, 0), coalesce(l.all_queues, 0),
  l.org, l.project, l.env, l.queue, l.missing
FROM (
  SELECT * FROM server_events
  WHERE noticed_at > now() - make_interval(secs => coalesce(%(within_s)s::double precision, 3e9))
  ORDER BY id DESC LIMIT %(most)s
) e
LEFT JOIN LATERAL (
  SELECT org, project, env, queue, missing, (sum(missing) OVER ())::bigint AS all_missing, count(*) OVER () AS all_queues
  FROM server_event_losses
  WHERE event_id = e.id AND org = coalesce(%(org)s, org) AND project = coalesce(%(project)s, project)
    AND env = coalesce(%(env)s, env)
  ORDER BY missing DESC, org, project, env, queue LIMIT %(most_losses)s::bigint
) l ON true
ORDER BY e.id DESC, l.missing DESC, l.org, l.project, l.env, l.queue

-- What a mover last saw in each shard's Valkey -----------------------------------------------------------------------

-- name: lock_marks
-- Let one mover at a time compare `shard` with what was seen before, until the transaction ends. Return the time in ms.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM pg_advisory_xact_lock(5021946, %(shard)s)

-- name: read_valkey_server
-- Return the replication id of a shard's Valkey and the version of what was seen of it.
SELECT replication_id, version FROM valkey_servers WHERE shard = %(shard)s

-- name: put_valkey_server
-- Store the replication id of a shard's Valkey and the version of what was seen of it.
INSERT INTO valkey_servers (shard, replication_id, version) VALUES (%(shard)s, %(replication_id)s, %(version)s)
ON CONFLICT (shard) DO UPDATE SET replication_id = excluded.replication_id, version = excluded.version

-- name: list_marks
-- Return what each queue of `shard` had accepted and held when it was last seen.
SELECT org, project, env, queue, epoch, accepted, held FROM valkey_marks WHERE shard = %(shard)s

-- name: put_marks
-- Store what queues of `shard` had accepted and held; one queue per entry of the arrays.
INSERT INTO valkey_marks (shard, org, project, env, queue, epoch, accepted, held)
SELECT %(shard)s, * FROM unnest(
  %(orgs)s::text[], %(projects)s::text[], %(envs)s::text[], %(queues)s::text[],
  %(epochs)s::text[], %(accepted)s::bigint[], %(held)s::bigint[]
)
ON CONFLICT (shard, org, project, env, queue)
DO UPDATE SET epoch = excluded.epoch, accepted = excluded.accepted, held = excluded.held

-- name: delete_marks
-- Delete what was seen of queues of `shard`; one queue per entry of the arrays.
DELETE FROM valkey_marks m
USING unnest(%(orgs)s::text[], %(projects)s::text[], %(envs)s::text[], %(queues)s::text[]) AS gone (org, project, env, queue)
WHERE m.shard = %(shard)s
  AND (m.org, m.project, m.env, m.queue) = (gone.org, gone.project, gone.env, gone.queue)
