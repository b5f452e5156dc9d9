-- A transaction that only places rows changes nothing here but the lock it holds: its commit need not wait for the disk.
SET LOCAL synchronous_commit = off
