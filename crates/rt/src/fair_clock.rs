//! Decides which scheduling group runs next, from shares and used time. Pure.
//!
//! Each group has a virtual clock. It advances by the time of the group's tasks, divided by the
//! group's shares. Among the groups with ready tasks, the group with the lowest clock runs. A group
//! without work must not accumulate its claim. When it becomes ready, its clock is set forward to
//! the lowest clock of the ready groups. An urgent group ([`Group::is_urgent`]) stays behind that
//! clock by a credit.

use crate::group::{Group, STATEMENT_SHARES};
use std::cell::Cell;
use std::time::Duration;

/// The credit of an urgent group that becomes ready. It runs this long before the others, if it
/// used less than its share before.
const CREDIT: Duration = Duration::from_millis(200);
/// The shares with which a group's clock advances at real speed.
const SCALE: u64 = STATEMENT_SHARES as u64;

/// The groups' virtual clocks.
pub(crate) struct FairClock {
    /// The groups with ready tasks, one bit each.
    ready: Cell<u8>,
    clocks: [Cell<u64>; Group::COUNT],
    shares: [Cell<u32>; Group::COUNT],
    /// The clock of the group that ran last, at that time. The clock of a group that becomes ready
    /// is not set far below it.
    last: Cell<u64>,
}

impl FairClock {
    pub fn new() -> FairClock {
        FairClock {
            ready: Cell::new(0),
            clocks: Default::default(),
            shares: Group::ALL.map(|group| Cell::new(group.shares())),
            last: Cell::new(0),
        }
    }

    /// Sets a group's shares; at least 1.
    pub fn set_shares(&self, group: Group, shares: u32) {
        self.shares[group as usize].set(shares.max(1));
    }

    pub fn shares(&self, group: Group) -> u32 {
        self.shares[group as usize].get()
    }

    /// Marks the group ready. Returns whether it was not ready before.
    #[inline]
    pub fn becomes_ready(&self, group: Group) -> bool {
        let (before, bit) = (self.ready.get(), 1 << group as u8);
        if before & bit != 0 {
            return false;
        }
        let floor = self.lowest(before).unwrap_or(self.last.get());
        let credit = if group.is_urgent() { self.virtual_time(group, CREDIT.as_nanos() as u64) } else { 0 };
        let clock = &self.clocks[group as usize];
        clock.set(clock.get().max(floor.saturating_sub(credit)));
        self.ready.set(before | bit);
        true
    }

    /// Marks the group as having no ready task.
    #[inline]
    pub fn becomes_idle(&self, group: Group) {
        self.ready.set(self.ready.get() & !(1 << group as u8));
    }

    /// The group that runs next.
    #[inline]
    pub fn next(&self) -> Option<Group> {
        let ready = self.ready.get();
        match ready.count_ones() {
            0 => None,
            1 => Some(Group::ALL[ready.trailing_zeros() as usize]),
            _ => Group::ALL
                .into_iter()
                .filter(|group| ready & (1 << *group as u8) != 0)
                .min_by_key(|group| self.clocks[*group as usize].get()),
        }
    }

    /// Whether any group has ready tasks.
    #[inline]
    pub fn is_any_ready(&self) -> bool {
        self.ready.get() != 0
    }

    /// Whether an urgent group has ready tasks.
    #[inline]
    pub fn is_urgent_ready(&self) -> bool {
        const URGENT: u8 = 1 << Group::Control as u8 | 1 << Group::Statement as u8;
        self.ready.get() & URGENT != 0
    }

    /// Records that a task of the group ran for this many nanoseconds.
    #[inline]
    pub fn ran(&self, group: Group, nanos: u64) {
        let clock = &self.clocks[group as usize];
        clock.set(clock.get() + self.virtual_time(group, nanos));
        self.last.set(clock.get());
    }

    /// Converts nanoseconds of the group's tasks to time on its clock.
    #[inline]
    fn virtual_time(&self, group: Group, nanos: u64) -> u64 {
        match u64::from(self.shares[group as usize].get()) {
            // Statements run most often, and need no division.
            SCALE => nanos,
            shares => nanos.saturating_mul(SCALE) / shares,
        }
    }

    fn lowest(&self, ready: u8) -> Option<u64> {
        let ready = Group::ALL.into_iter().filter(|group| ready & (1 << *group as u8) != 0);
        ready.map(|group| self.clocks[group as usize].get()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: u64 = 100_000;

    /// Runs the ready groups for `polls` polls. Returns the number of polls of each group.
    fn run(clock: &FairClock, ready: &[Group], polls: usize) -> [usize; Group::COUNT] {
        for group in Group::ALL {
            match ready.contains(&group) {
                true => _ = clock.becomes_ready(group),
                false => clock.becomes_idle(group),
            }
        }
        let mut got = [0; Group::COUNT];
        for _ in 0..polls {
            let Some(group) = clock.next() else { panic!("nothing is ready") };
            clock.ran(group, POLL);
            got[group as usize] += 1;
        }
        got
    }

    #[test]
    fn time_is_shared_in_proportion_to_shares() {
        use Group::{Maintenance, Scan, Statement};
        let clock = FairClock::new();
        assert_eq!(run(&clock, &[Statement, Scan, Maintenance], 6_000)[1..], [4_000, 1_000, 1_000]);
        clock.set_shares(Maintenance, 1_000);
        let got = run(&clock, &[Statement, Maintenance], 6_000);
        assert!(got[Statement as usize].abs_diff(3_000) <= 4, "{got:?}");
    }

    #[test]
    fn a_group_that_runs_alone_is_not_penalized_later() {
        use Group::{Maintenance, Statement};
        let clock = FairClock::new();
        assert_eq!(run(&clock, &[Maintenance], 10_000)[3], 10_000);
        // Statements use their credit of 200 ms, and then share the time. Maintenance does not pay
        // for its ten thousand earlier polls.
        let got = run(&clock, &[Statement, Maintenance], 4_000);
        assert!((2_000..3_700).contains(&got[Statement as usize]), "{got:?}");
        assert!(got[Maintenance as usize] >= 300, "{got:?}");
    }

    #[test]
    fn control_tasks_never_wait_and_starve_no_group() {
        use Group::{Control, Statement};
        let clock = FairClock::new();
        run(&clock, &[Statement], 1_000);
        clock.becomes_ready(Control);
        assert_eq!(clock.next(), Some(Control));
        let got = run(&clock, &[Statement, Control], 42_000);
        assert!(got[Statement as usize] >= 1_000, "{got:?}");
    }

    #[test]
    fn an_idle_group_has_no_claim_on_past_time_unless_a_task_waits_for_it() {
        use Group::{Maintenance, Statement};
        let clock = FairClock::new();
        run(&clock, &[Statement], 100_000);
        let got = run(&clock, &[Statement, Maintenance], 10);
        assert!(got[Maintenance as usize] <= 3, "{got:?}");
    }
}
