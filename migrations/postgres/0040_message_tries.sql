-- The failed attempts to deliver a message: the last ones, for as long as the message is kept.
CREATE TABLE message_tries (
    message_id uuid             NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    began_at   bigint           NOT NULL,
    ended_at   bigint           NOT NULL,
    number     bigint           NOT NULL, -- 1 again after an operator's redelivery
    instance   text COLLATE "C" NOT NULL,
    status     bigint,                    -- of the response; null if none of HTTP came
    reason     text             NOT NULL,
    next_at    bigint,                    -- null for the last one
    PRIMARY KEY (message_id, began_at)
);
