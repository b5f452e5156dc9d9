-- record_failure: note an attempt that came to nothing, beside the versions; what is served stays.
--@flags allow-oom
-- KEYS       attempts
-- ARGV       owner, number (0: it did not come so far), message
redis.call('HINCRBY', KEYS[1], 'error', 1)
redis.call('HSET', KEYS[1], 'error_at_unix', redis.call('TIME')[1], 'error_message', ARGV[3],
  'error_owner', ARGV[1], 'error_number', ARGV[2])
