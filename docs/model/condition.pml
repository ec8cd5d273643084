/* What a condition on a write is worth: If-Match and If-None-Match compare what the key holds, its content by the ETag or that it is
 * absent, and not which write put it there. One key of one resource in a store that checks conditions.
 *
 * The fence is right here, and told in one step: a token passes when no lower one is open. What fence.pml and restart.pml show of it is
 * not shown again. A write that has been sent flies until the store takes it or it is lost; the fence counts it as open until it is
 * settled, and it is settled when its answer came or its settle time is over.
 *
 * What it can assert, wherever a write takes effect:
 *   -DORDER   its token is not below one whose holder was told yes
 *   -DKEYS    its token is not below that of the last write that took effect on the key
 *
 * Switches that add something the proxy has to live with:
 *   -DLATE      a write may take effect later than the settle time after its gate: the store is slow, or whoever sends it was paused
 *   -DEQUAL     a second writer has token 1
 *   -DDELETES   writers also delete: the key is absent again
 *   -DRECURS    contents come again, and with them their ETags
 *   -DANNOUNCES somebody announces token 2 and writes nothing
 * What the proxy may do:
 *   -DASSUME    absent is assumed, not observed (HEAD was forbidden)
 *   -DREMEMBER  the ETag is the one of our own last write, from long before the gate
 *   -DBYID      a write in doubt is settled early when its write id is seen on the object
 * What it may not do, each of which must fail:
 *   -DUNCONDITIONAL with LATE: no condition
 *   -DGATEFIRST     with LATE: the ETag is observed behind the gate
 *   -DRETRYINSIDE   with LATE: after a 412 it looks again and sends again within the same admission
 *   -DBYETAG        a write in doubt is settled early when the key holds something that its condition does not name: so it cannot take
 *                   effect any more, as long as nothing recurs. With DELETES or RECURS it can
 *   -DREPLAY        with DELETES or RECURS: what was sent comes twice, and the proxy knows of one
 */
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define NONE 255

/* The store. */
byte etag;           /* what the key holds; 0: it is absent */
byte id;             /* the write id on the object; 0: none */
byte fresh = 2;      /* the next content that has not been there before; 1 is the one that recurs */

/* The proxy. */
byte mark;
byte open[3];
byte remembered = NONE;
byte ids;            /* write ids given out */

/* What the world knows. */
byte acked;          /* highest token whose holder was told yes */
byte last;           /* token of the last write that took effect */

#ifdef UNCONDITIONAL
#define HOLDS true
#else
#define HOLDS (etag == want)
#endif

inline observe() {
	if
	:: want = etag
#ifdef REMEMBER
	:: remembered != NONE -> want = remembered
#endif
#ifdef ASSUME
	:: !deletes -> want = 0
#endif
	fi
}

inline settle() { open[t]--; counted = false }

inline late() { /* the fence has waited for its settle time; from here on it knows nothing of the write */
#ifdef LATE
	if :: atomic { counted -> settle() } :: true fi
#else
	skip
#endif
}

/* The store takes a write: all of it, or a 412. */
inline take() {
	flying--;
	if
	:: HOLDS ->
#ifdef ORDER
		assert(t >= acked);
#endif
#ifdef KEYS
		assert(t >= last);
#endif
		last = t; applied = true;
		if
		:: deletes -> etag = 0; id = 0
		:: else -> id = me;
			if
			:: etag = fresh; fresh++
#ifdef RECURS
			:: etag = 1
#endif
			fi
		fi;
		made = etag
	:: else
	fi
}

proctype Write(byte t; byte n) {
	byte want, me, flying, tries, made;
	bool deletes, counted, applied, answered;
	do
	:: n == 0 -> break
	:: n > 0 -> n--; tries = 0; deletes = false;
#ifdef DELETES
		if :: deletes = true :: true fi;
#endif
again:
#ifndef GATEFIRST
		observe();
#endif
		if /* the gate: an admission begins */
		:: atomic { t < mark -> goto over }
		:: atomic { t >= mark && (t == 1 || open[1] == 0) -> mark = t; open[t]++; counted = true; ids++; me = ids }
		fi;
		late();
#ifdef GATEFIRST
		observe();
#endif
#ifdef RETRYINSIDE
inside:
#endif
		answered = false; applied = false;
#ifdef REPLAY
		flying = 2;
#else
		flying = 1;
#endif
		do
		:: atomic { flying > 0 -> take();
			if :: true -> answered = true :: true /* the answer is lost */ fi }
		:: flying > 0 -> flying-- /* it is lost on the way */
#ifdef RETRYINSIDE
		:: atomic { answered && !applied && tries == 0 -> tries++; want = etag; goto inside }
#endif
		:: atomic { counted && answered -> /* with its answer it is settled */
			settle();
			if
			:: applied -> acked = MAX(acked, t);
				remembered = made /* as the answer says; others may have come since */
			:: else
			fi }
		:: atomic { counted && !answered && flying == 0 -> settle() } /* its settle time is over */
#ifdef LATE
		:: atomic { counted && !answered -> settle() }                /* and the write is later than that */
#endif
#ifdef BYID
		:: atomic { counted && !answered && id == me -> settle(); acked = MAX(acked, t) }
#endif
#ifdef BYETAG
		:: atomic { counted && !answered && etag != want -> settle() }
#endif
		:: !counted && flying == 0 -> break
		od;
		if /* a definite 412 from our own condition: everything again, as a new admission */
		:: answered && !applied && tries == 0 -> tries++; goto again
		:: true
		fi;
over:		skip
	od
}

#ifdef ANNOUNCES
proctype Announce() {
	atomic { mark = 2 };
	atomic { open[1] == 0 -> acked = 2 }
}
#endif

init { /* spin tries the last one first: so a wrong variant fails soon */
	atomic {
#ifdef ANNOUNCES
		run Announce();
#endif
		run Write(2, 2);
#ifdef EQUAL
		run Write(1, 1);
#endif
		run Write(1, 2)
	}
}
