-- name: notify
-- params: items
-- nothing: watchers see every commit by PRAGMA data_version

-- name: notify_one
-- params: channel, payload
-- nothing: see notify
