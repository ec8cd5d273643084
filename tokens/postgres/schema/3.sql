-- Version 3: a token that is in use is bound to a holder. Grants with it for writers that do not name themselves are lower ones then.

-- Of two grants with one generation and token that which is not named is lower. A program that knows only version 2 does not: all of its are named, so that
-- nobody asks it for one that it would go on with.
ALTER TABLE fenceproxy.grants ADD COLUMN named boolean NOT NULL DEFAULT true;

-- revoke as in version 1, with the order that grants have now.
CREATE FUNCTION fenceproxy.revoke(of_resource bytea, but_for bigint, below_generation bigint, below_token bigint, below_named boolean,
	OUT ids bigint[], OUT incarnations bigint[])
LANGUAGE plpgsql AS $$
BEGIN
	UPDATE fenceproxy.grants g SET revoked = true
		WHERE g.resource = of_resource AND g.incarnation <> but_for AND (g.generation, g.token, g.named) < (below_generation, below_token, below_named)
			AND NOT g.revoked;
	SELECT array_agg(g.id ORDER BY g.generation, g.token, g.id), array_agg(g.incarnation ORDER BY g.generation, g.token, g.id) INTO ids, incarnations
		FROM fenceproxy.grants g
		WHERE g.resource = of_resource AND g.incarnation <> but_for AND (g.generation, g.token, g.named) < (below_generation, below_token, below_named);
	IF EXISTS (SELECT FROM fenceproxy.instances i WHERE i.incarnation = ANY (incarnations)) THEN
		PERFORM pg_notify('fenceproxy', '');
	END IF;
END $$;

-- record is the durable part of a raise. Each statement sees what was committed before it began: the grants are read by one that begins
-- when the fence is locked. One statement that did both would read them as they were before it waited for the lock.
--
-- An own grant that is not named is not replaced where its token is bound: there is no new grant then, and lower_ids names the own one, too.
CREATE FUNCTION fenceproxy.record(
	of_incarnation bigint, of_resource bytea, of_generation bigint, of_token bigint, of_holder bytea, of_access_key bytea, of_settle_ms bigint, as_named boolean,
	OUT outcome text, OUT generation bigint, OUT token bigint, OUT holder bytea, -- of the fence; before the raise, if it was refused
	OUT raised boolean, OUT id bigint, OUT settle_ms bigint, OUT lower_ids bigint[], OUT lower_incarnations bigint[])
LANGUAGE plpgsql AS $$
DECLARE
	fence fenceproxy.fences;
	own   fenceproxy.grants;
	bound boolean := of_holder <> '';
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
		WHERE g.resource = of_resource AND (g.incarnation = of_incarnation OR (g.generation, g.token, g.named) < (fence.generation, of_token, bound))
		ORDER BY g.id FOR UPDATE;
	IF bound AND EXISTS (SELECT FROM fenceproxy.grants g WHERE g.incarnation = of_incarnation AND g.resource = of_resource
			AND g.generation = fence.generation AND g.token = of_token AND NOT g.named) THEN
		SELECT r.ids, r.incarnations INTO lower_ids, lower_incarnations
			FROM fenceproxy.revoke(of_resource, 0, fence.generation, of_token, bound) r; -- incarnations count from 1
		RETURN;
	END IF;
	DELETE FROM fenceproxy.grants g WHERE g.incarnation = of_incarnation AND g.resource = of_resource RETURNING * INTO own;
	settle_ms := of_settle_ms;
	IF own.generation = fence.generation AND own.token = of_token THEN
		settle_ms := greatest(of_settle_ms, own.settle_ms); -- what is open under the same token may need the longer one
	END IF;
	id := nextval('fenceproxy.grant_ids');
	INSERT INTO fenceproxy.grants VALUES (id, of_resource, of_incarnation, fence.generation, of_token, settle_ms, false, as_named);

	SELECT r.ids, r.incarnations INTO lower_ids, lower_incarnations
		FROM fenceproxy.revoke(of_resource, of_incarnation, fence.generation, of_token, bound) r;
END $$;

-- What programs call that know version 2, and run until all are upgraded.
CREATE OR REPLACE FUNCTION fenceproxy.record(
	of_incarnation bigint, of_resource bytea, of_generation bigint, of_token bigint, of_holder bytea, of_access_key bytea, of_settle_ms bigint,
	OUT outcome text, OUT generation bigint, OUT token bigint, OUT holder bytea,
	OUT raised boolean, OUT id bigint, OUT settle_ms bigint, OUT lower_ids bigint[], OUT lower_incarnations bigint[])
LANGUAGE sql AS $$
	SELECT * FROM fenceproxy.record(of_incarnation, of_resource, of_generation, of_token, of_holder, of_access_key, of_settle_ms, true)
$$;
