-- Version 2: the proxy's own locks.

CREATE TABLE fenceproxy.locks (
	resource   bytea   PRIMARY KEY,
	version    bigint  NOT NULL, -- counts the changes of the row, which is never removed
	issued     bigint  NOT NULL, -- the highest token that was ever issued: that of the lease
	lease      text    NOT NULL, -- id of the last one; '' after all tokens were raised
	released   boolean NOT NULL, -- it was given back
	taken_over boolean NOT NULL, -- the lease before it was not
	holder     bytea   NOT NULL,
	access_key bytea   NOT NULL,
	ttl_ms     bigint  NOT NULL,
	since      bigint  NOT NULL, -- by the clock of a proxy, for people; nothing goes by it
	renewed    bigint  NOT NULL  -- the same
) WITH (fillfactor = 50);

-- swap_lock puts a row in the place of the one with this version, if its fence is the same where that matters, and says whether it did. A raise
-- that is not committed yet comes after it.
CREATE FUNCTION fenceproxy.swap_lock(
	of_incarnation bigint, of_resource bytea, of_version bigint, new_issued bigint, new_lease text, new_released boolean, new_taken_over boolean,
	new_holder bytea, new_access_key bytea, new_ttl_ms bigint, new_since bigint, new_renewed bigint,
	issues boolean, of_generation bigint, of_token bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM fenceproxy.instances i WHERE i.incarnation = of_incarnation FOR KEY SHARE;
	IF NOT FOUND THEN
		RETURN 'ended';
	END IF;
	IF issues AND (of_generation, of_token) <>
		(coalesce((SELECT f.generation FROM fenceproxy.fences f WHERE f.resource = of_resource), 0),
		 coalesce((SELECT f.token FROM fenceproxy.fences f WHERE f.resource = of_resource), 0)) THEN
		RETURN 'changed';
	END IF;
	INSERT INTO fenceproxy.locks AS l VALUES (of_resource, of_version + 1, new_issued, new_lease, new_released, new_taken_over, new_holder, new_access_key,
			new_ttl_ms, new_since, new_renewed)
		ON CONFLICT (resource) DO UPDATE SET version = excluded.version, issued = excluded.issued, lease = excluded.lease, released = excluded.released,
			taken_over = excluded.taken_over, holder = excluded.holder, access_key = excluded.access_key, ttl_ms = excluded.ttl_ms,
			since = excluded.since, renewed = excluded.renewed
		WHERE l.version = of_version;
	RETURN CASE WHEN FOUND THEN 'swapped' ELSE 'changed' END;
END $$;
