-- What a write with an idempotency key came to, put down in the transaction that did it. Both the key and the request are
-- kept as SHA-256. `outcome` is an error number, or the status of a success; `message` is what an error said. Times are
-- seconds since 1970 in UTC.
CREATE TABLE plantstore.idempotency_keys (
  user_id     bigint  NOT NULL,
  key         bytea   NOT NULL CHECK (length(key) = 32),
  fingerprint bytea   NOT NULL CHECK (length(fingerprint) = 32),
  outcome     integer NOT NULL,
  message     text,
  expires_at  bigint  NOT NULL,
  PRIMARY KEY (user_id, key)
);

CREATE INDEX idempotency_keys_by_expiry ON plantstore.idempotency_keys (expires_at);

-- Whose plants somebody else may read (`reader`) or also change (`editor`).
CREATE TABLE plantstore.shares (
  grantee_id bigint NOT NULL REFERENCES plantstore.users (user_id) ON DELETE CASCADE,
  owner_id   bigint NOT NULL REFERENCES plantstore.users (user_id) ON DELETE CASCADE,
  role       text   NOT NULL CHECK (role IN ('reader', 'editor')),
  created_at bigint NOT NULL,
  PRIMARY KEY (grantee_id, owner_id)
);

CREATE INDEX shares_by_owner ON plantstore.shares (owner_id);
