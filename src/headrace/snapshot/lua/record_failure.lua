-- record_failure: record a failed refresh. The served version stays.
--@flags allow-oom
-- KEYS       attempts
-- ARGV       owner, number (0: none was assigned), message, duration ms
redis.call('HINCRBY', KEYS[1], 'error', 1)
redis.call('HSET', KEYS[1], 'error_at_unix', redis.call('TIME')[1], 'error_message', ARGV[3],
  'error_owner', ARGV[1], 'error_number', ARGV[2], 'duration_ms', ARGV[4])
