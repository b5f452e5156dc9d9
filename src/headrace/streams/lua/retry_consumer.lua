-- Consumer that owns the entries waiting for a retry: no worker holds them.
local RETRY_CONSUMER = 'headrace:waiting'
