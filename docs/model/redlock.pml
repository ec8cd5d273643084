/* The fencing token of a lock on the majority of three Redis servers: tokens/locks/redlock. There is no clock in it: a lock may run out on any
 * server at any moment, so that two may take themselves for the holder, as they may where somebody was paused for too long.
 *
 * A try has an id of its own.
 *   lock   asks each server, in one order or the other, for its lock, and is told its counter with it. With a majority of locks it
 *          goes on; its token is 1 and the highest counter that it was told.
 *   raise  asks each server that gave its lock to set the counter to the token, which it does if the lock is still that of this id, and
 *          the counter lower. With a majority of that it has the lock.
 *   renew  asks each server whether the lock is still that of this id, and the counter not above the token. A majority of that is a yes.
 * Each message may be lost, and each answer. Nothing is sent twice. What was not released, or given back, runs out. One counter begins at 1, as a
 * raise leaves it that came no further.
 *
 * What it asserts, for a try that has come by a token:
 *   once    nobody else was given it
 *   growth  it is above all that were given before the raise began
 *   holder  it is below that of somebody who has a majority of locks now, and a token: who lost his lock on the way does not overtake the holder
 * and for a renewal that was told yes:
 *   stands  no higher token had been given before it began
 *
 * Switches that add something that has to be lived with:
 *   -DLATE       one message for a lock may arrive at any later time, and give one who has lost his locks a majority of them again; with COUNTERS
 *   -DCOUNTERS   the promise of the holder is not asserted: what holds by the counters alone
 * Wrong variants, each of which must fail:
 *   -DNOLOCK     the raise does not ask for the lock; with COUNTERS that is right
 *   -DEQUAL      with NOLOCK: a counter that stands at the token already counts as raised
 *   -DMINORITY   one raised counter is enough
 *   -DASSUME     a raise that was not answered counts as done
 *   -DINCR       each server counts for itself when it gives its lock, the highest number is the token, and nothing is raised
 *   -DRENEWLOCK  with LATE and COUNTERS: a renewal asks for the locks alone
 *   -DFORGET     a server loses its counter
 */
#define N 3
#define MAJORITY 2

byte owner[N];   /* the id whose lock it is; 0: nobody's */
byte counter[N];
byte tokenOf[3]; /* what was given to the tries 1 and 2; 0: nothing */
byte finished;   /* the highest of these */
byte late, at;   /* the id that still asks server at for its lock; 0: none does */

#define BIT(n) (1 << (n))
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define LOCKS(i) ((owner[0] == i) + (owner[1] == i) + (owner[2] == i))
#define OTHER (3 - id)

#ifdef NOLOCK
#define MAYRAISE true
#else
#define MAYRAISE (owner[n] == id)
#endif
#ifdef EQUAL
#define LOWER (counter[n] <= t)
#else
#define LOWER (counter[n] < t)
#endif
#ifdef RENEWLOCK
#define STANDS (owner[n] == id)
#else
#define STANDS (owner[n] == id && counter[n] <= t)
#endif
#ifdef INCR
#define COUNT(n) counter[n]++
#else
#define COUNT(n) skip
#endif
#ifdef MINORITY
#define RAISED 1
#else
#define RAISED MAJORITY
#endif

/* The network, and time. */
active proctype world() {
#ifdef FORGET
	bool forgot;
#endif
end:	do
	:: atomic { owner[0] != 0 -> owner[0] = 0 }
	:: atomic { owner[1] != 0 -> owner[1] = 0 }
	:: atomic { owner[2] != 0 -> owner[2] = 0 }
#ifdef LATE
	:: atomic { late != 0 && owner[at] == 0 -> owner[at] = late; COUNT(at); late = 0; at = 0 }
#endif
#ifdef FORGET
	:: atomic { !forgot && counter[0] > 0 -> forgot = true; counter[0] = 0; owner[0] = 0 }
#endif
	od
}

/* The kth server in the direction of a try. */
#define TH(k) (down -> 2 - k : k)

proctype try(byte id) {
	byte k, locked, yes, highest, before, t, n;
	bool down;

	if
	:: down = false
	:: id == 2 -> down = true
	fi;
	do /* lock */
	:: k < N -> atomic {
		n = TH(k);
		k++;
		if
		:: owner[n] == 0 ->
			owner[n] = id;
			COUNT(n);
			locked = locked | BIT(n);
			yes++;
			highest = MAX(counter[n], highest)
		:: owner[n] == 0 -> owner[n] = id; COUNT(n) /* the answer is lost */
#ifdef LATE
		:: late == 0 -> late = id; at = n
#endif
		:: true /* refused, or the message is lost */
		fi;
		n = 0
	   }
	:: else -> break
	od;
	atomic {
		if
		:: yes < MAJORITY -> goto over
		:: else -> k = 0; yes = 0; before = finished
		fi;
#ifdef INCR
		t = highest;
		goto won
#else
		t = highest + 1
#endif
	};
	do /* raise */
	:: k < N -> atomic {
		n = TH(k);
		k++;
		if
		:: (locked & BIT(n)) && MAYRAISE && LOWER -> counter[n] = t; yes++
		:: (locked & BIT(n)) && MAYRAISE && LOWER -> counter[n] = t /* the answer is lost */
#ifdef ASSUME
			; yes++
		:: (locked & BIT(n)) -> yes++
#endif
		:: true
		fi;
		n = 0
	   }
	:: else -> break
	od;
	if
	:: yes < RAISED -> goto over
	:: else
	fi;
won:	atomic {
		assert(t != tokenOf[OTHER]); /* once */
		assert(t > before);          /* growth */
#ifndef COUNTERS
		assert(t < tokenOf[OTHER] || tokenOf[OTHER] == 0 || LOCKS(OTHER) < MAJORITY); /* holder */
#endif
		tokenOf[id] = t;
		finished = MAX(t, finished);
		k = 0;
		yes = 0;
		locked = 0;
		highest = 0
	};
	before = finished;
	do /* renew */
	:: k < N -> atomic {
		n = TH(k);
		k++;
		if
		:: STANDS -> yes++
		:: true
		fi;
		n = 0
	   }
	:: else -> break
	od;
	assert(yes < MAJORITY || before <= t); /* stands */
over:	atomic { k = 0; before = 0; yes = 0; locked = 0; highest = 0; t = 0; down = false }
}

init {
	atomic {
		counter[2] = 1;
		run try(1);
		run try(2)
	}
}
