-- The failed attempts to deliver a message: the last ones, for as long as the message is kept.
CREATE TABLE message_tries (
    message_id BLOB    NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    began_at   INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    number     INTEGER NOT NULL, -- 1 again after an operator's redelivery
    instance   TEXT    NOT NULL,
    status     INTEGER,          -- of the response; null if none of HTTP came
    reason     TEXT    NOT NULL,
    next_at    INTEGER,          -- null for the last one
    PRIMARY KEY (message_id, began_at)
) STRICT, WITHOUT ROWID;
