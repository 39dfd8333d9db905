-- Sessions of people who signed in at the console, so that they hold at every instance and after a restart. Nobody can sign in with
-- what is kept here: of the id in the cookie, and of the access token, it is the SHA-256, in hexadecimal digits.
CREATE TABLE console_sessions (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    credential text COLLATE "C" NOT NULL, -- of the token
    ends_at    bigint           NOT NULL
);
CREATE INDEX console_sessions_by_token ON console_sessions (credential, ends_at);
CREATE INDEX console_sessions_by_end ON console_sessions (ends_at);
