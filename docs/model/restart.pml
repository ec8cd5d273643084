/* One process over its embedded registry, killed, stopped and started again: tokens/sqlite. There are three runs. The store is another
 * machine, and takes no conditions: what a dead run has sent may still take effect. One key, so one fence.
 *
 * A raise records its token and this run's grant in one transaction. Then it waits for the grants of earlier runs with lower tokens:
 * until their settle time is over, the longest time from the gate to the effect. Here that time is over when nothing of the run is on
 * its way any more; that is what the settle time is chosen for.
 *
 * What it asserts, wherever a write takes effect:
 *   order       its token is not below one whose holder was told yes
 *   durability  its token is on disk, or was before a reset
 *   generation  no reset was answered since it began
 *
 * Switches that add something the proxy has to live with:
 *   -DEQUAL       a second writer has token 1
 *   -DRESET       an operator sets the token to 1
 * Wrong variants, each of which must fail:
 *   -DLATE        the store takes longer than the settle time: what the promise of order rests on
 *   -DLATERECORD  the token is recorded when the write is settled, not before
 *   -DLASTRUN     only the grants of the run just before are waited for
 *   -DCLEANDROP   a clean stop drops the grants of earlier runs, which still settle
 *   -DCLEANDOUBT  a clean stop drops the grant of writes that are open or in doubt
 *   -DTOKENLESS   writes without a token pass on a look at the mark, and leave no grant
 *   -DCANCELPASS  a write past the gate counts as settled when its client leaves
 *   -DNODOUBT     a write whose outcome nobody told counts as settled at once
 *   -DGIVEBACK    with EQUAL: a grant that came too late to be used is given back, although writes are open under the one that it replaced
 *   -DRESETNOW    with RESET: a reset does not wait for the grants of earlier runs
 */
#define NONE 255
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define RUNS 3

/* On disk. */
byte recorded;                  /* the highest token */
byte row[RUNS + 1] = NONE;      /* the grant of each run, by its token */
byte generation;

/* In the memory of the process. */
byte number = 1;                  /* its number; the registry counts */
bool up = true;
bool stopping;
byte mark;
byte grant = NONE;
byte open[3];                   /* writes past the gate, not settled, by token */
byte raises;
bool resetting;

/* What the world knows. */
byte flying[RUNS + 1];          /* writes of each run that may still take effect */
byte acked;                     /* the highest token whose holder was told yes */

#define ALIVE (up && number == r)
#define SERVES (up && number == r && !stopping)
#define OPEN (open[0] + open[1] + open[2])
#define LOWER ((t > 0 && open[0] > 0) || (t > 1 && open[1] > 0))
#ifdef LATE
#define SETTLED(run) true
#else
#define SETTLED(run) (flying[run] == 0)
#endif
/* The grant of an earlier run does not stand in the way of token t. */
#define PAST(run) (run >= r || row[run] >= t || SETTLED(run))

#ifdef TOKENLESS
#define RAISES (t > 0)
#else
#define RAISES true
#endif
#ifdef RESETNOW
#define EARLIER true
#else
#define EARLIER ((r <= 1 || SETTLED(1)) && (r <= 2 || SETTLED(2)))
#endif

inline drop() {                 /* the write is settled; in a later run nobody counts it */
	if :: ALIVE && counted -> open[t]--; counted = false :: else fi
}

inline effect() {
	assert(t >= acked);
	assert(g == generation);
	assert(t <= recorded);
	flying[r]--
}

proctype Write(byte t; byte n) {
	byte r, g;
	bool counted;
	do
	:: n == 0 -> break
	:: n > 0 -> n--;
		atomic { up && !stopping -> r = number; g = generation };
		do /* the gate */
		:: atomic { SERVES && !resetting && g == generation && mark == t && grant == t ->
			open[t]++; flying[r]++; counted = true; break }
#ifdef TOKENLESS
		:: atomic { t == 0 && SERVES && !resetting && g == generation && mark == 0 && recorded == 0 ->
			open[t]++; flying[r]++; counted = true; break }
#endif
		:: atomic { !SERVES || (!resetting && (t < mark || g != generation)) -> goto over }
		:: atomic { SERVES && !resetting && g == generation && t >= mark && !(mark == t && grant == t) && RAISES ->
			mark = t; raises++ };
			if /* drain */
			:: !SERVES -> goto over
			:: atomic { SERVES && mark > t -> raises--; goto over }
			:: SERVES && mark == t && !LOWER
			fi;
			atomic { if /* record: one transaction, and one sync of the disk */
				:: SERVES && recorded <= t -> row[r] = t;
#ifndef LATERECORD
					recorded = t
#endif
				:: SERVES && recorded > t -> raises--; mark = MAX(mark, recorded); goto over
				:: !SERVES -> goto over
				fi };
			if /* wait for earlier runs */
			:: !SERVES -> goto over
			:: SERVES && PAST(1) && PAST(2)
			fi;
			atomic { if /* install */
				:: SERVES -> raises--;
					if
					:: mark == t -> grant = t
					:: else
#ifdef GIVEBACK
						; if :: row[r] == t -> row[r] = NONE :: else fi
#endif
					fi
				:: else -> goto over
				fi }
		od;

#ifdef CANCELPASS
		if :: atomic { true -> drop() } :: true fi;
#endif
		if
		:: atomic { effect() };  /* and the store says so */
			atomic { drop(); if :: ALIVE && g == generation -> acked = MAX(acked, t) :: else fi;
#ifdef LATERECORD
				if :: ALIVE -> recorded = MAX(recorded, t) :: else fi
#endif
			}
		:: true ->               /* nobody hears what became of it: in doubt until its settle time is over */
#if defined(NODOUBT) || defined(LATE)
			atomic { drop() };
#endif
			if
			:: atomic { effect() }
			:: flying[r]--   /* it was lost on the way */
			fi;
			atomic { drop() }
		fi;
over:		skip
	od
}

inline forget() {
	mark = 0; grant = NONE; open[0] = 0; open[1] = 0; open[2] = 0; raises = 0; resetting = false; stopping = false; up = false
}

/* Who runs the process: two of the runs end, each at any point. */
proctype Operator() {
	do
	:: number < RUNS ->
		if
		:: atomic { forget() }  /* kill -9 */
		:: stopping = true;     /* SIGTERM: nothing new passes; what is past the gate is waited for, as long as the stop may take */
			atomic {
#ifdef CLEANDOUBT
				row[number] = NONE;
#else
				if :: OPEN == 0 -> row[number] = NONE :: else fi;
#endif
#ifdef CLEANDROP
				if :: OPEN == 0 -> row[1] = NONE; row[2] = NONE :: else fi;
#endif
				forget()
			}
		fi;
		atomic {
#ifdef LASTRUN
			if :: number == 2 -> row[1] = NONE :: else fi;
#endif
			number++; mark = recorded; up = true
		}
	:: true -> break
	od
}

#ifdef RESET
proctype Reset(byte t) {
	byte r;
	atomic { up && !stopping -> r = number; resetting = true };
	if
	:: !SERVES -> goto over
	:: SERVES && OPEN == 0 && raises == 0
	fi;
	if
	:: !SERVES -> goto over
	:: SERVES && EARLIER
	fi;
	atomic { if
		:: SERVES -> generation++; recorded = t; mark = t; grant = NONE; row[1] = NONE; row[2] = NONE; row[3] = NONE;
			acked = t; resetting = false
		:: else
		fi };
over:	skip
}
#endif

init { /* spin tries the last one first: so a wrong variant fails soon */
	atomic {
#ifdef RESET
		run Reset(1);
		run Write(2, 1);
#else
		run Write(2, 2);
#endif
		run Operator();
#ifdef EQUAL
		run Write(1, 1);
#endif
		run Write(0, 1);
		run Write(1, 1)
	}
}
