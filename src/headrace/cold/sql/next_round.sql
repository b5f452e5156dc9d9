-- Hold the rounds until the transaction ends, and begin the next one.
UPDATE quota_rounds SET round = round + 1 RETURNING round
