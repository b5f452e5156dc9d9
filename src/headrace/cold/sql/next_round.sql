-- Hold the rounds until the transaction ends, and begin the next one. Its number is a time in ms, so a PostgreSQL that was
-- restored to an earlier point goes on with numbers that Valkey has not seen.
UPDATE quota_rounds SET round = greatest(round + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) RETURNING round
