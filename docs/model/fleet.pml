/* Several proxies over one registry: tokens/fleet, and what tokens/shared.go makes of it. One resource, two instances, one key, so one fence. The store
 * is another machine, and takes no conditions.
 *
 * A raise moves the mark in memory, drains, records its token and a grant in one step of the registry, and waits for the lower grants that
 * this step has shown it. Every message can be on its way for as long as it likes: the answer of a raise, a give-back, and a record whose caller
 * has given up. An instance whose lease was lost comes back as a new incarnation; what its old one let through settles for itself, which here means
 * that nothing of it is on its way any more.
 *
 * What it asserts:
 *   order       where a write takes effect, its token is not below one whose holder was told yes, by a write or an announcement
 *   generation  where a write takes effect, no reset was answered since it began
 *   holder      where a write without a name takes effect, nobody with the same token and a name was told yes
 *
 * Switches that add something the proxy has to live with:
 *   -DREJOIN    an instance that has lost its lease comes back
 *   -DEVICT     resources leave memory, and their grants are given back
 *   -DLATE      one call of a record fails, and takes effect later or never
 *   -DRESET     an operator sets the token to 0
 *   -DSECOND    a second writer has token 1
 *   -DANNOUNCE  somebody announces token 2
 *   -DAGAIN     token 2 comes twice, and token 1 once
 *   -DHOLDER    token 1 comes twice without a name, and once with one, which binds it
 * Wrong variants, each of which must fail:
 *   -DNOINC      with REJOIN: an answer from before a lost lease is good after it
 *   -DKEEPROWS   with REJOIN: an instance that comes back removes the grants of its lost lease
 *   -DNOSETTLE   the grants of a lost lease are removed at once
 *   -DGB_UNCOND  with EVICT: a give-back takes the grant of this instance, whichever it has
 *   -DGB_TOKEN   with EVICT: a give-back takes it if it has the same token
 *   -DEVICT_ANY  with EVICT: a resource leaves memory although a raise of it is under way
 *   -DEVICT_MARK with EVICT, LATE, AGAIN: a resource leaves memory although its mark may be recorded yet
 *   -DMEMONLY    with LATE: a revocation is answered only for what memory knows: then a raise waits for ever
 *   -DGATEAFTER  the lease is looked at when a write is answered, and not when it is let through
 *   -DNOYIELD    a grant is given back without waiting for the writes under it
 *   -DRESETTAKES with RESET, LATE: a reset removes the grant of its caller
 *   -DEQUALSTAND with HOLDER: who binds a token does not wait for grants of it that are for writers without a name
 *   -DOWNTAKEN   with HOLDER: the grant of who binds a token takes the place of such a one of the same instance
 *   -DNOBIND     with HOLDER: such a grant is given back when nothing is open, and memory is not told that the token is bound
 */
#define NONE 255
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* In the registry. */
byte recorded, generation;
bool bound;                     /* the recorded token, to the one holder there is */
typedef Row { byte token = NONE; byte generation; byte id; bool named };
Row row[2];                     /* the grant of each instance's incarnation */
byte ids;
Row old[2];                     /* the lowest grant of its lost leases */

/* In the memory of each instance. */
typedef Instance {
	bool member = true;         /* its lease goes on */
	byte incarnation;
	byte mark, grant = NONE, granted, known, seen;   /* granted: incarnation of the grant; known: id of the row; seen: generation */
	bool holder, grantnamed;    /* the mark is bound; the grant is for who names himself */
	byte open[3], unnamed[3];   /* writes past the gate, not settled, by token; those without a name among them */
	byte raises, pins;
	bool doubt                  /* a record has failed in this incarnation, and may come yet */
};
Instance at[2];

/* What the world knows. */
byte flying[2], oldflying[2];   /* writes that may take effect, let through by the incarnation there is, and by those before */
byte acked, ackedgeneration;
bool ackednamed;
bool latecall;                  /* the one late call has been made */

#define I at[i]
#define J(i) (1 - (i))
#define LOWEROPEN(i, t) ((t > 0 && at[i].open[0] > 0) || (t > 1 && at[i].open[1] > 0))
#define OPEN(i) (at[i].open[0] + at[i].open[1] + at[i].open[2])
#ifdef EQUALSTAND
#define BEFORE(r, t, n) (r.token < t)
#else
#define BEFORE(r, t, n) (r.token < t || (r.token == t && n && !r.named))
#endif
#define LOWER(r, g, t, n) (r.token != NONE && (r.generation < g || (r.generation == g && BEFORE(r, t, n))))
/* A write of this kind may pass by what memory has. */
#define USABLE (I.seen == g && I.mark == t && I.grant == t && I.grantnamed == named && (named || !I.holder))
#ifdef NOSETTLE
#define SETTLED(k) true
#else
#define SETTLED(k) (oldflying[k] == 0)
#endif
#ifdef GATEAFTER
#define GATE true
#else
#define GATE (I.member && I.granted == I.incarnation)
#endif
#ifdef MEMONLY
#define REMEMBERED (I.known == row[i].id)
#else
#define REMEMBERED true
#endif
#ifdef NOYIELD
#define DRAINED true
#else
#define DRAINED (!LOWEROPEN(i, recorded) && !(bound && I.unnamed[recorded] > 0))
#endif
#ifdef EVICT_ANY
#define UNUSED true
#else
#define UNUSED (I.pins == 0 && I.raises == 0)
#endif
#ifdef EVICT_MARK
#define RECORDED true
#else
#define RECORDED !(I.doubt && I.mark > recorded)
#endif
/* Nothing lower stands that this raise has to wait for. */
#define CLEAR(i, g, t, n) (!LOWER(row[J(i)], g, t, n) && (!LOWER(old[0], g, t, n) || SETTLED(0)) && (!LOWER(old[1], g, t, n) || SETTLED(1)))
#ifdef NOBIND
#define TOLD true
#else
#define TOLD (I.mark > recorded || !bound || I.holder)
#endif
#ifdef OWNTAKEN
#define STANDS false
#else
#define STANDS (named && row[i].token == t && row[i].generation == g && !row[i].named)
#endif

inline begin() { at[i].pins++; g = at[i].seen }         /* a claim is for the generation that memory knows */

inline acknowledge() {
	if
	:: g > ackedgeneration || (g == ackedgeneration && t > acked) -> ackedgeneration = g; acked = t; ackednamed = named
	:: g == ackedgeneration && t == acked -> ackednamed = ackednamed || named
	:: else
	fi
}

inline effect() {
	assert(g >= ackedgeneration);
	assert(g > ackedgeneration || t >= acked);
	assert(g > ackedgeneration || t > acked || named || !ackednamed)
}

/* The step of the registry. Its caller may have given up long before. */
inline record() {
	if
	:: recorded > t || generation != g || (recorded == t && bound && !named) || c != at[i].incarnation || !at[i].member -> refused = true
	:: else ->
		bound = named || (recorded == t && bound); recorded = t;
		if
		:: STANDS -> own = row[i].id
		:: else -> ids++; row[i].token = t; row[i].generation = g; row[i].named = named; row[i].id = ids; id = ids
		fi
	fi
}

inline bind() {
	I.holder = true;
	if :: !I.grantnamed -> I.grant = NONE :: else fi
}

/* What memory takes over of what is recorded, by its generation. */
inline learn() {
	if
	:: I.mark < recorded -> I.mark = recorded; I.holder = bound
	:: I.mark == recorded && bound -> bind()
	:: else
	fi
}

#ifdef LATE
/* A record whose caller has given up. */
proctype Late(byte i; byte t; byte g; byte c; bool named) {
	byte id, own;
	bool refused;
	if
	:: atomic { record() }
	:: true                 /* it was lost */
	fi
}
#endif

proctype Write(byte t; byte n; bool announces; bool named) {
	byte i, g, c, id, own;
	bool refused, passed, counted;
	do
	:: n == 0 -> break
	:: n > 0 -> n--;
		if :: i = 0 :: i = 1 fi;
		refused = false; passed = false;
		atomic { begin() };
		do
		:: atomic { !announces && USABLE && GATE ->
			I.open[t]++; I.unnamed[t] = I.unnamed[t] + (1 - named); passed = true; counted = I.member; flying[i] = flying[i] + counted; c = I.incarnation; break }
		:: atomic { announces && USABLE && I.member && I.granted == I.incarnation ->
			acknowledge(); break }
		:: atomic { I.seen != g || I.mark > t || !I.member || (I.mark == t && I.holder && !named) -> break }
		:: atomic { I.seen == g && I.mark <= t && I.member && !(I.mark == t && I.holder && !named) && !(USABLE && I.granted == I.incarnation) ->
			I.holder = I.holder && I.mark == t; I.mark = t; I.raises++ };
			if                                                      /* drain */
			:: atomic { !I.member || I.mark > t || I.seen != g -> I.raises--; break }
			:: I.member && I.mark <= t && I.seen == g && !LOWEROPEN(i, t)
			fi;
#ifdef LATE
			if
			:: atomic { !latecall && I.member -> latecall = true; I.raises--; I.doubt = true; refused = true;
				run Late(i, t, g, I.incarnation, named) }
			:: true
			fi;
			if :: refused -> break :: else fi;
#endif
recording:		atomic { c = I.incarnation; own = 0; record();
				if
				:: refused -> I.raises--;
					if :: g == I.seen && generation == g -> learn() :: else fi
				:: else
				fi };
			if :: refused -> break :: else fi;
			if
			:: own > 0 ->                                           /* one of ours stands in the way: it is given back first */
				atomic { if :: I.seen == g && I.mark == t -> bind() :: else fi };
				if
				:: I.seen != g || (!LOWEROPEN(i, t) && I.unnamed[t] == 0)
				fi;
				atomic {
					if
					:: row[i].id == own -> row[i].token = NONE
					:: old[i].id == own -> old[i].token = NONE
					:: else
					fi;
					goto recording }
			:: else
			fi;
			if                                                      /* wait */
			:: CLEAR(i, g, t, named)
			:: atomic { c != I.incarnation || !I.member -> I.raises--; refused = true }
			:: timeout -> assert(false)                             /* nobody will ever give it back */
			fi;
			if :: refused -> break :: else fi;
			atomic { I.raises--; I.known = MAX(I.known, id);
				if
				:: I.mark == t && I.seen == g && I.member && (named || !I.holder) -> I.grant = t; I.grantnamed = named; I.holder = named;
#ifdef NOINC
					I.granted = I.incarnation
#else
					I.granted = c
#endif
				:: else
				fi }
		od;
		if
		:: passed ->
			atomic { effect();
				if
				:: counted && c == I.incarnation && I.member -> flying[i]--
				:: counted && !(c == I.incarnation && I.member) -> oldflying[i]--
				:: else         /* let through without a lease: nobody's settle time covers it */
				fi };
			atomic { I.open[t]--; I.unnamed[t] = I.unnamed[t] - (1 - named); acknowledge() }
		:: else
		fi;
		atomic { I.pins-- }
	od
}

/* What an instance does for others: it looks at what stands in the registry, and gives back. A give-back is a message. */
proctype Keeper(byte i) {
	byte id, token, c, evictions;
	bool sent;
end:	do
	:: atomic { I.member && row[i].token != NONE && I.seen == generation && I.mark < recorded -> I.mark = recorded; I.holder = bound }
#ifndef NOBIND
	:: atomic { I.member && LOWER(row[i], generation, recorded, bound) && I.seen == generation && I.mark == recorded && bound && !I.holder -> learn() }
#endif
	:: atomic { I.member && I.seen < generation && OPEN(i) == 0 && I.raises == 0 -> /* a reset is heard of */
		I.seen = generation; I.mark = recorded; I.holder = bound; I.grant = NONE; I.known = 0 }
	:: atomic { !sent && I.member && LOWER(row[i], generation, recorded, bound) && I.seen == generation && REMEMBERED &&
		I.mark >= recorded && TOLD && DRAINED ->
		sent = true; id = row[i].id; token = row[i].token; c = I.incarnation }
#ifdef EVICT
	:: atomic { !sent && I.member && evictions < 2 && OPEN(i) == 0 && UNUSED && RECORDED ->
		evictions++; sent = (I.known != 0); id = I.known; token = I.mark; c = I.incarnation;
		I.known = 0; I.grant = NONE; I.mark = recorded; I.holder = bound; I.seen = generation }
#endif
	:: atomic { sent -> sent = false;
		if
#ifdef GB_UNCOND
		:: c == I.incarnation -> row[i].token = NONE
#else
#ifdef GB_TOKEN
		:: c == I.incarnation && row[i].token == token -> row[i].token = NONE
#endif
#endif
		:: row[i].id == id -> row[i].token = NONE
		:: old[i].id == id -> old[i].token = NONE
		:: else
		fi;
		id = 0; token = 0; c = 0 }
	od
}

/* The lease of an instance is over, for itself a little earlier than for the others. */
proctype Lease(byte i) {
	if
	:: atomic { I.member = false; I.doubt = false;
		if
		:: row[i].token != NONE -> old[i].token = row[i].token; old[i].generation = row[i].generation; old[i].named = row[i].named;
			old[i].id = row[i].id; row[i].token = NONE; row[i].id = 0
		:: else
		fi;
		oldflying[i] = oldflying[i] + flying[i]; flying[i] = 0 };
#ifdef REJOIN
		atomic { I.member = true; I.incarnation++;
#ifdef KEEPROWS
			old[i].token = NONE
#endif
		}
#endif
	:: true
	fi
}

#ifdef RESET
#define OVER(r) (r.token == NONE || r.generation >= g)
inline restart() { generation++; recorded = 0; bound = false; g = generation }

proctype Reset() {
	byte i, g;
	if :: i = 0 :: i = 1 fi;
	if
	:: atomic { I.member && OPEN(i) == 0 && I.raises == 0 && I.seen == generation -> restart();
		row[i].token = NONE; I.seen = g; I.mark = 0; I.holder = false; I.grant = NONE; I.known = 0 };  /* its caller is drained, and told */
		atomic { OVER(row[J(i)]) && (OVER(old[0]) || SETTLED(0)) && (OVER(old[1]) || SETTLED(1)) -> ackedgeneration = g; acked = 0; ackednamed = false }
#ifdef LATE
	:: atomic { !latecall && I.member && OPEN(i) == 0 && I.raises == 0 -> latecall = true };
		atomic { restart();                                                         /* its caller has given up */
#ifdef RESETTAKES
			row[i].token = NONE
#endif
		}
#endif
	:: true
	fi
}
#endif

init { /* spin tries the last one first: so a wrong variant fails soon */
	atomic {
		run Keeper(0);
		run Keeper(1);
		run Lease(0);
#ifdef RESET
		run Reset();
#endif
#ifdef ANNOUNCE
		run Write(2, 1, true, false);
#endif
#ifdef SECOND
		run Write(1, 1, false, false);
#endif
#ifdef AGAIN
		run Write(1, 1, false, false);
		run Write(2, 2, false, false)
#else
#ifdef HOLDER
		run Write(1, 1, false, true);
#else
		run Write(2, 1, false, false);
#endif
		run Write(1, 2, false, false)
#endif
	}
}
