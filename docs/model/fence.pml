/* The fence of one resource in one process: tokens/fence.go, write.go and resource.go. Two keys belong to the resource.
 *
 * What it asserts, wherever a write takes effect in the store:
 *   order       its token is not below one whose holder was told yes, by a write or by an announcement
 *   generation  no reset came since it began
 *   keys        its token is not below that of the last write on its key
 *
 * Switches that add something the proxy has to live with:
 *   -DEVICT       the resource leaves memory, once, and comes back from the registry
 *   -DRESET       an operator sets the token to 1
 *   -DEQUAL       a second writer has token 1
 * Wrong variants, each of which must fail:
 *   -DNODRAIN     a raise does not wait for lower writes that are past the gate
 *   -DMARKLATE    the mark moves behind the drain, not before it
 *   -DGRANTALONE  the gate looks at the grant only: there is no mark beside it
 *   -DPERKEY      each key has a fence of its own
 *   -DCANCELPASS  a write past the gate counts as settled when its client leaves
 *   -DEVICT_ANY   with EVICT: a resource leaves memory although somebody waits for its raise
 *   -DEVICT_OPEN  with EVICT: a resource leaves memory although writes are past its gate
 *   -DNOGENERATION  with RESET: a write from before a reset is judged by its token alone
 *   -DRESETNOW    with RESET: a reset does not wait for the writes past the gate
 */
#define NONE 255
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* What the registry has on disk. Of two keys with fences of their own (PERKEY) there are two entries. */
byte recorded[2];
byte generation;

/* A resource in memory. There is a second one when the first was evicted, and whoever still holds the first goes on with that. */
typedef Resource {
	byte mark;        /* the highest token seen */
	byte grant = NONE; /* the token that may pass without asking */
	byte open[3];     /* writes past the gate, by token */
	byte pins;        /* who holds a pointer to it */
	byte raises;      /* under way */
	bool asked[3];    /* a raise to this token is one of them */
	bool resetting
};
Resource mem[2];
byte current;         /* the one that new requests find */

/* What the world knows, and the proxy does not look at. */
byte acked;           /* highest token whose holder was told yes */
byte era;             /* resets that are over */
byte key[2];          /* token of the last write on each key */

#define RES mem[e]
#define LOWER(t) ((t > 0 && RES.open[0] > 0) || (t > 1 && RES.open[1] > 0))
#define OPEN(i) (mem[i].open[0] + mem[i].open[1] + mem[i].open[2])
#ifdef PERKEY
#define WHICH(k) k
#define ENTRY e
#else
#define WHICH(k) current
#define ENTRY 0
#endif
#ifdef GRANTALONE
#define USABLE (RES.grant == t)
#else
#define USABLE (RES.mark == t && RES.grant == t)
#endif

/* The raise to one token, in the background: drain, record, install. It is not the client's; it goes on if that leaves. The three
 * steps are apart, so that raises overtake each other. */
proctype Raise(byte t; byte e) {
	if
#ifdef NODRAIN
	:: skip
#else
	:: !LOWER(t)
#endif
	:: RES.mark > t -> goto over
	fi;
	atomic {
		if
		:: recorded[ENTRY] <= t -> recorded[ENTRY] = t
		:: else -> RES.mark = MAX(RES.mark, recorded[ENTRY]); goto over
		fi
	};
#ifdef MARKLATE
	RES.mark = MAX(RES.mark, t);
#endif
	if
	:: atomic { RES.mark == t -> RES.grant = t }
	:: RES.mark != t /* a higher token was seen since: its raise installs */
	fi;
over:
	atomic { RES.asked[t] = false; RES.raises--; RES.pins-- }
}

/* One write, or an announcement. */
proctype Write(byte t; byte k; bool announces) {
	byte e, g, began;
	bool counted = true;

	atomic { /* begin: judged before anything of it moves */
		e = WHICH(k); g = generation; began = era;
		if
		:: t < RES.mark -> goto out
		:: else -> RES.pins++
		fi
	};
	/* The body comes; the client may leave on the way, or be paused for as long as it likes. */
	if :: true :: goto leave fi;

	do
	:: atomic { !RES.resetting && USABLE && g == generation ->
		if
		:: announces -> acked = MAX(acked, t); goto leave
		:: else -> RES.open[t]++; break
		fi }
	:: atomic { !RES.resetting && (t < RES.mark || g != generation) -> goto leave } /* refused */
	:: atomic { !RES.resetting && g == generation && t >= RES.mark && !USABLE ->
#ifndef MARKLATE
		RES.mark = t;
#endif
		if
		:: RES.asked[t] /* somebody raises to it already */
		:: else -> RES.asked[t] = true; RES.raises++; RES.pins++; run Raise(t, e)
		fi };
		if
		:: !RES.asked[t]
		:: true -> goto leave /* its client leaves, or has waited long enough; the raise goes on */
		fi
	od;

	/* Past the gate. */
#ifdef CANCELPASS
	if :: atomic { true -> RES.open[t]--; counted = false } :: true fi;
#endif
	atomic { /* it takes effect */
		assert(t >= acked);
		assert(began == era);
		assert(t >= key[k]);
		key[k] = t
	};
	atomic { /* settled, then told */
		if :: counted -> RES.open[t]-- :: else fi;
		if :: began == era -> acked = MAX(acked, t) :: else fi
	};
leave:
	RES.pins--;
out:
	skip
}

#ifdef EVICT
proctype Sweeper() {
	if
	:: atomic {
#if defined(EVICT_ANY)
		OPEN(0) == 0
#elif defined(EVICT_OPEN)
		mem[0].pins == OPEN(0) && mem[0].raises == 0
#else
		mem[0].pins == 0
#endif
		-> mem[1].mark = recorded[0]; current = 1 }
	:: true
	fi
}
#endif

#ifdef RESET
/* The only way down. New writes and raises wait while it waits for those under way. */
proctype Reset(byte t) {
	byte e;
	atomic { e = current; RES.pins++; RES.resetting = true };
#ifndef RESETNOW
	OPEN(e) == 0 && RES.raises == 0;
#endif
	atomic {
		recorded[0] = t; RES.mark = t; RES.grant = NONE;
#ifndef NOGENERATION
		generation++;
#endif
		era++; acked = t; key[0] = 0; key[1] = 0;
		RES.resetting = false; RES.pins--
	}
}
#endif

init { /* spin tries the last one first: what is added comes first here, so that a wrong variant fails soon */
	atomic {
#ifdef EVICT
		run Sweeper();
#endif
#ifdef RESET
		run Reset(1);
#endif
#ifdef EQUAL
		run Write(1, 1, false);
#endif
		run Write(2, 0, true);
		run Write(2, 1, false);
		run Write(0, 0, false);
		run Write(1, 0, false)
	}
}
