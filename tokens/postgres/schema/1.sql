-- Version 1. Names of resources, uploads and holders are whatever bytes a client sent: bytea, which also sorts by bytes.
-- Times are in ms since 1970, by the clock of this server.
--
-- Who locks several rows locks instances first, then a fence, then grants in the order of their ids: no two wait for each other.

CREATE TABLE fenceproxy.registry (
	id         text   NOT NULL, -- names this registry; stamps in the stores carry it
	created_at bigint NOT NULL,
	life       text   NOT NULL, -- another one after a restored registry was taken into use: instances from before stay out
	-- What this server was when it last wrote this row. A copy of the registry, or an older state of it, sits on something else.
	system     bigint NOT NULL, -- identifier of the database cluster
	timeline   bigint NOT NULL,
	written_by bigint NOT NULL  -- the row's own xmin, which a dump does not keep
);

CREATE TABLE fenceproxy.counters (
	incarnation bigint NOT NULL, -- the last one that was given out
	map_epoch   bigint NOT NULL, -- counts the remaps; an instance that goes by an older one is over
	map_list    bigint NOT NULL  -- counts the other changes of the mappings, within an epoch
);
INSERT INTO fenceproxy.counters VALUES (0, 0, 0);

CREATE TABLE fenceproxy.fences (
	resource   bytea  PRIMARY KEY,
	generation bigint NOT NULL, -- counts the resets
	token      bigint NOT NULL, -- the highest recorded; only a reset takes it down
	holder     bytea  NOT NULL, -- that the token is bound to, '' if none
	access_key bytea  NOT NULL,
	raised_at  bigint           -- null: nothing is recorded, the row is only there to be locked
) WITH (fillfactor = 80);

CREATE TABLE fenceproxy.instances ( -- the living ones; each has one row in here or in ended
	incarnation bigint PRIMARY KEY,
	beat        bigint NOT NULL,
	lease_ms    bigint NOT NULL,
	map_epoch   bigint NOT NULL
) WITH (fillfactor = 20);

CREATE TABLE fenceproxy.ended ( -- until their grants have settled
	incarnation bigint PRIMARY KEY,
	map_epoch   bigint NOT NULL
);

CREATE SEQUENCE fenceproxy.grant_ids;
CREATE TABLE fenceproxy.grants (
	id          bigint  PRIMARY KEY, -- never used twice: a late give-back must not hit a newer grant
	resource    bytea   NOT NULL,
	incarnation bigint  NOT NULL,
	generation  bigint  NOT NULL,
	token       bigint  NOT NULL,
	settle_ms   bigint  NOT NULL,
	revoked     boolean NOT NULL, -- somebody waits for it
	UNIQUE (incarnation, resource)
);
CREATE INDEX grants_resource ON fenceproxy.grants (resource);
CREATE INDEX grants_revoked ON fenceproxy.grants (incarnation) WHERE revoked;

CREATE TABLE fenceproxy.uploads (
	upload bytea  PRIMARY KEY,
	token  bigint NOT NULL -- the highest that touched it
);

CREATE TABLE fenceproxy.mappings (
	position bigint PRIMARY KEY, -- of the entries whose names match a bucket, the first one counts
	name     bytea  NOT NULL,
	digest   bytea  NOT NULL,    -- of text
	text     bytea  NOT NULL     -- says what leads a key to its resource
);

CREATE TABLE fenceproxy.adopted (
	id         text   PRIMARY KEY, -- of another registry, whose stamps count as our own; '': one that this one has replaced, or an earlier state of it
	adopted_at bigint NOT NULL
);

CREATE TABLE fenceproxy.repair (
	state text NOT NULL -- of a rebuild that has not come to its end; no row: there is none
);

CREATE FUNCTION fenceproxy.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- lock_fence locks the row of a resource, and makes it if there is none.
CREATE FUNCTION fenceproxy.lock_fence(of_resource bytea) RETURNS fenceproxy.fences LANGUAGE plpgsql AS $$
DECLARE
	fence fenceproxy.fences;
BEGIN
	SELECT * INTO fence FROM fenceproxy.fences f WHERE f.resource = of_resource FOR UPDATE;
	IF NOT FOUND THEN
		INSERT INTO fenceproxy.fences VALUES (of_resource, 0, 0, '', '', NULL) ON CONFLICT DO NOTHING;
		SELECT * INTO STRICT fence FROM fenceproxy.fences f WHERE f.resource = of_resource FOR UPDATE;
	END IF;
	RETURN fence;
END $$;

-- revoke asks for the grants of a resource below a generation and token, but for that of one incarnation (they count from 1), and says which they
-- are. The fence is locked, so that nobody can add one, and so are they.
CREATE FUNCTION fenceproxy.revoke(of_resource bytea, but_for bigint, below_generation bigint, below_token bigint, OUT ids bigint[], OUT incarnations bigint[])
LANGUAGE plpgsql AS $$
BEGIN
	UPDATE fenceproxy.grants g SET revoked = true
		WHERE g.resource = of_resource AND g.incarnation <> but_for AND (g.generation, g.token) < (below_generation, below_token) AND NOT g.revoked;
	SELECT array_agg(g.id ORDER BY g.generation, g.token, g.id), array_agg(g.incarnation ORDER BY g.generation, g.token, g.id) INTO ids, incarnations
		FROM fenceproxy.grants g
		WHERE g.resource = of_resource AND g.incarnation <> but_for AND (g.generation, g.token) < (below_generation, below_token);
	IF EXISTS (SELECT FROM fenceproxy.instances i WHERE i.incarnation = ANY (incarnations)) THEN
		PERFORM pg_notify('fenceproxy', '');
	END IF;
END $$;

-- record is the durable part of a raise. Each statement sees what was committed before it began: the grants are read by one that begins
-- when the fence is locked. One statement that did both would read them as they were before it waited for the lock.
CREATE FUNCTION fenceproxy.record(
	of_incarnation bigint, of_resource bytea, of_generation bigint, of_token bigint, of_holder bytea, of_access_key bytea, of_settle_ms bigint,
	OUT outcome text, OUT generation bigint, OUT token bigint, OUT holder bytea, -- of the fence; before the raise, if it was refused
	OUT raised boolean, OUT id bigint, OUT settle_ms bigint, OUT lower_ids bigint[], OUT lower_incarnations bigint[])
LANGUAGE plpgsql AS $$
DECLARE
	fence fenceproxy.fences;
	own   fenceproxy.grants;
BEGIN
	-- Who ends the incarnation deletes this row, and waits for us; a beat changes it, and does not.
	PERFORM FROM fenceproxy.instances i WHERE i.incarnation = of_incarnation FOR KEY SHARE;
	IF NOT FOUND THEN
		outcome := 'ended';
		RETURN;
	END IF;
	fence := fenceproxy.lock_fence(of_resource);
	generation := fence.generation;
	token := fence.token;
	holder := fence.holder;
	outcome := CASE
		WHEN of_generation <> fence.generation THEN 'reset'
		WHEN of_token < fence.token THEN 'stale'
		WHEN of_token = fence.token AND fence.holder <> '' AND of_holder <> fence.holder THEN 'conflict'
		ELSE 'recorded' END;
	IF outcome <> 'recorded' THEN
		RETURN;
	END IF;
	raised := of_token > fence.token;
	IF raised OR of_holder <> fence.holder THEN
		UPDATE fenceproxy.fences f SET token = of_token, holder = of_holder, access_key = of_access_key, raised_at = fenceproxy.now_ms()
			WHERE f.resource = of_resource;
		token := of_token;
		holder := of_holder;
	END IF;

	PERFORM FROM fenceproxy.grants g
		WHERE g.resource = of_resource AND (g.incarnation = of_incarnation OR (g.generation, g.token) < (fence.generation, of_token))
		ORDER BY g.id FOR UPDATE;
	DELETE FROM fenceproxy.grants g WHERE g.incarnation = of_incarnation AND g.resource = of_resource RETURNING * INTO own;
	settle_ms := of_settle_ms;
	IF own.generation = fence.generation AND own.token = of_token THEN
		settle_ms := greatest(of_settle_ms, own.settle_ms); -- what is open under the same token may need the longer one
	END IF;
	id := nextval('fenceproxy.grant_ids');
	INSERT INTO fenceproxy.grants VALUES (id, of_resource, of_incarnation, fence.generation, of_token, settle_ms, false);

	SELECT r.ids, r.incarnations INTO lower_ids, lower_incarnations
		FROM fenceproxy.revoke(of_resource, of_incarnation, fence.generation, of_token) r;
END $$;

-- reset starts a new generation of a resource and asks for all grants on it, the caller's among them.
CREATE FUNCTION fenceproxy.reset(of_incarnation bigint, of_resource bytea, to_token bigint,
	OUT outcome text, OUT generation bigint, OUT raised_at bigint, OUT lower_ids bigint[], OUT lower_incarnations bigint[])
LANGUAGE plpgsql AS $$
DECLARE
	fence fenceproxy.fences;
BEGIN
	PERFORM FROM fenceproxy.instances i WHERE i.incarnation = of_incarnation FOR KEY SHARE;
	IF NOT FOUND THEN
		outcome := 'ended';
		RETURN;
	END IF;
	outcome := 'recorded';
	fence := fenceproxy.lock_fence(of_resource);
	generation := fence.generation + 1;
	raised_at := fenceproxy.now_ms();
	UPDATE fenceproxy.fences f SET generation = reset.generation, token = to_token, holder = '', access_key = '', raised_at = reset.raised_at
		WHERE f.resource = of_resource;
	PERFORM FROM fenceproxy.grants g WHERE g.resource = of_resource ORDER BY g.id FOR UPDATE;
	SELECT r.ids, r.incarnations INTO lower_ids, lower_incarnations FROM fenceproxy.revoke(of_resource, 0, reset.generation, 0) r;
END $$;

-- enter begins an incarnation. A remap changes the row that is locked here, and so comes before it or sees it.
CREATE FUNCTION fenceproxy.enter(of_life text, of_lease_ms bigint, of_map_epoch bigint, OUT outcome text, OUT given bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM fenceproxy.registry r WHERE r.life = of_life FOR SHARE;
	IF NOT FOUND THEN
		outcome := 'restored';
		RETURN;
	END IF;
	PERFORM FROM fenceproxy.counters FOR UPDATE;
	IF NOT EXISTS (SELECT FROM fenceproxy.counters c WHERE c.map_epoch = of_map_epoch) THEN
		outcome := 'remapped';
		RETURN;
	END IF;
	IF EXISTS (SELECT FROM fenceproxy.instances i WHERE i.map_epoch <> of_map_epoch)
		OR EXISTS (SELECT FROM fenceproxy.ended e WHERE e.map_epoch <> of_map_epoch) THEN
		outcome := 'draining';
		RETURN;
	END IF;
	outcome := 'joined';
	UPDATE fenceproxy.counters c SET incarnation = c.incarnation + 1 RETURNING c.incarnation INTO given;
	INSERT INTO fenceproxy.instances VALUES (given, 1, of_lease_ms, of_map_epoch);
END $$;

-- sweep removes the grants of an ended incarnation that have settled, at most so many, and says how many there were.
CREATE FUNCTION fenceproxy.sweep(of_incarnation bigint, settled_ms bigint, at_most bigint, OUT removed bigint, OUT next_ms bigint) LANGUAGE plpgsql AS $$
BEGIN
	removed := 0;
	next_ms := 0;
	PERFORM FROM fenceproxy.ended e WHERE e.incarnation = of_incarnation FOR UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	WITH settled AS MATERIALIZED (
		SELECT g.id FROM fenceproxy.grants g WHERE g.incarnation = of_incarnation AND g.settle_ms <= settled_ms ORDER BY g.id LIMIT at_most FOR UPDATE
	), gone AS (
		DELETE FROM fenceproxy.grants g USING settled s WHERE g.id = s.id RETURNING g.revoked
	), told AS (
		SELECT pg_notify('fenceproxy', '') FROM gone WHERE revoked LIMIT 1
	)
	SELECT count(*) INTO removed FROM gone LEFT JOIN told ON true;
	SELECT coalesce(min(g.settle_ms), 0) INTO next_ms FROM fenceproxy.grants g WHERE g.incarnation = of_incarnation;
	IF NOT EXISTS (SELECT FROM fenceproxy.grants g WHERE g.incarnation = of_incarnation) THEN
		DELETE FROM fenceproxy.ended e WHERE e.incarnation = of_incarnation;
	END IF;
END $$;

-- raise_to records at least these marks.
CREATE FUNCTION fenceproxy.raise_to(resources bytea[], marks bigint[], generations bigint[], at_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	mark   record;
	fence  fenceproxy.fences;
	raised bigint := 0;
BEGIN
	FOR mark IN SELECT m.resource, m.token, m.generation FROM unnest(resources, marks, generations) m (resource, token, generation) ORDER BY m.resource LOOP
		SELECT * INTO fence FROM fenceproxy.fences f WHERE f.resource = mark.resource;
		CONTINUE WHEN mark.token <= coalesce(fence.token, 0) AND mark.generation <= coalesce(fence.generation, 0);
		fence := fenceproxy.lock_fence(mark.resource);
		IF mark.token > fence.token THEN
			IF fence.token = 0 OR fence.raised_at IS DISTINCT FROM at_ms THEN
				raised := raised + 1;
			END IF;
			UPDATE fenceproxy.fences f SET token = mark.token, holder = '', access_key = '', raised_at = at_ms WHERE f.resource = mark.resource;
		END IF;
		UPDATE fenceproxy.fences f SET generation = mark.generation, raised_at = coalesce(f.raised_at, at_ms)
			WHERE f.resource = mark.resource AND f.generation < mark.generation;
	END LOOP;
	RETURN raised;
END $$;
