-- Whether an operator lets a channel be told of Headrace's own health, which names tenants. Takes the place of `health`,
-- which tenants could set themselves; that one is still written for processes of older versions, and no longer read.
ALTER TABLE alert_channels ADD COLUMN health_by_operator boolean NOT NULL DEFAULT false;
