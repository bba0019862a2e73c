//! Log lines about partitions that exceed a limit: one when refusals begin, one when they end.
//!
//! A shard watches a fixed number of partitions and writes a few lines per second. If more
//! partitions exceed their limits, the lines of some are left out; the metrics count all refusals.
//! A line shows the token: the key may be secret, or large.

use crate::decider::Moment;
use crate::excess::Excess;
use crate::limiter::{LimitKind, hash};
use model::id::TableId;
use model::token::Token;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Partitions that are watched at the same time.
const PLACES: usize = 128;
/// Places where a partition can be.
const PROBES: usize = 4;
/// Refusals have ended when there was none for this long, in milliseconds.
const QUIET_MS: u64 = 5_000;
/// How often is checked whether refusals have ended.
const CHECK: Duration = Duration::from_secs(1);
/// The most lines about partitions that begin to exceed a limit, and that end to, in each window.
const LINES: u32 = 4;

/// A refusal, or in mode `observe` what would be one.
pub(crate) struct Refusal<'a> {
    /// The table's id.
    pub id: TableId,
    /// The full name of the table.
    pub table: &'a Arc<str>,
    pub kind: LimitKind,
    pub observe: bool,
    pub excess: Excess,
}

/// A partition whose operations are refused.
struct Limited {
    token: Token,
    id: TableId,
    /// The full name of the table.
    table: Arc<str>,
    kind: LimitKind,
    observe: bool,
    /// Refusals so far.
    refused: u64,
    /// The first refusal, and the last one, as [`Moment::millis`].
    began: u64,
    last: u64,
}

impl Limited {
    fn is(&self, token: Token, refusal: &Refusal<'_>) -> bool {
        self.token == token && self.id == refusal.id && self.kind == refusal.kind && self.observe == refusal.observe
    }
}

/// The partitions of a shard that exceed a limit.
#[derive(Default)]
pub(crate) struct LimitedPartitions {
    places: RefCell<Vec<Option<Limited>>>,
    /// Refusals of partitions without a line since the last line.
    omitted: Cell<u64>,
    /// The window of the last line, and the lines in it.
    lines: Cell<(u64, u32)>,
}

impl LimitedPartitions {
    /// Records a refusal.
    pub fn refused(self: &Rc<Self>, token: Token, refusal: &Refusal<'_>, now: Moment) {
        let mut places = self.places.borrow_mut();
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        let first = (hash(token, refusal.kind) ^ refusal.id.0.as_u128() as u32) as usize;
        let mut free = None;
        for at in (first..first + PROBES).map(|at| at % PLACES) {
            match &mut places[at] {
                Some(limited) if limited.is(token, refusal) => {
                    limited.refused += 1;
                    limited.last = now.millis;
                    return;
                }
                Some(_) => {}
                None => free = free.or(Some(at)),
            }
        }
        let Some(free) = free else {
            // Others have the places until their refusals end.
            self.omitted.set(self.omitted.get() + 1);
            return;
        };
        if !self.begins(token, refusal, now) {
            return;
        }
        let Refusal { id, table, kind, observe, .. } = *refusal;
        let (table, refused) = (table.clone(), 1);
        let (began, last) = (now.millis, now.millis);
        places[free] = Some(Limited { token, id, table, kind, observe, refused, began, last });
        let is_first = places.iter().flatten().count() == 1;
        drop(places);
        if is_first {
            rt::task::spawn(self.clone().watch(now.millis)).detach();
        }
    }

    /// Writes the line about a partition that begins to exceed its limit. False: there are too many
    /// lines in this window.
    fn begins(&self, token: Token, refusal: &Refusal<'_>, now: Moment) -> bool {
        let (window, lines) = self.lines.get();
        let lines = if window == now.window { lines } else { 0 };
        if lines >= LINES {
            self.omitted.set(self.omitted.get() + 1);
            return false;
        }
        self.lines.set((now.window, lines + 1));
        let (kind, excess) = (refusal.kind.name(), refusal.excess);
        let (keyspace, table) = names(refusal.table);
        let effect = if refusal.observe { "only counted (mode observe)" } else { "refused" };
        tracing::warn!(
            keyspace,
            table,
            token = token.0,
            limit_of = kind,
            limit = excess.limit,
            observed = excess.observed,
            shard = rt::shard::this().0,
            omitted = self.omitted.take(),
            "a partition exceeds its rate limit: the excess is {effect}"
        );
        true
    }

    /// Waits until the refusals of all partitions have ended. `began`: the present, as
    /// [`Moment::millis`].
    async fn watch(self: Rc<Self>, began: u64) {
        let since = rt::time::coarse_now();
        loop {
            rt::time::sleep(CHECK).await;
            let elapsed = rt::time::coarse_now().saturating_duration_since(since);
            if !self.check(began + elapsed.as_millis() as u64) {
                return;
            }
        }
    }

    /// Writes the lines about partitions whose refusals have ended. `now`: as [`Moment::millis`].
    /// False: there are no counts left.
    fn check(&self, now: u64) -> bool {
        let (mut places, mut lines) = (self.places.borrow_mut(), 0);
        for place in places.iter_mut() {
            let Some(limited) = place else { continue };
            if lines < LINES && now.saturating_sub(limited.last) >= QUIET_MS {
                lines += 1;
                let seconds = limited.last.saturating_sub(limited.began) / 1_000;
                let (keyspace, table) = names(&limited.table);
                let effect = if limited.observe { "were counted (mode observe)" } else { "were refused" };
                tracing::info!(
                    keyspace,
                    table,
                    token = limited.token.0,
                    limit_of = limited.kind.name(),
                    operations = limited.refused,
                    seconds,
                    shard = rt::shard::this().0,
                    omitted = self.omitted.take(),
                    "a partition is within its rate limit again: operations beyond it {effect}"
                );
                *place = None;
            }
        }
        places.iter().any(Option::is_some)
    }
}

/// The keyspace and the name in the full name of a table.
fn names(full_name: &str) -> (&str, &str) {
    full_name.split_once('.').unwrap_or(("", full_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn watched(partitions: &LimitedPartitions) -> usize {
        partitions.places.borrow().iter().flatten().count()
    }

    #[test]
    fn lines_begin_and_end_and_are_bounded() {
        rt::block_on(async {
            let partitions = Rc::new(LimitedPartitions::default());
            let table: Arc<str> = "ks.t".into();
            let (kind, id) = (LimitKind::Read, TableId(Uuid::from_u128(7)));
            let refusal = Refusal { id, table: &table, kind, observe: false, excess: Excess::default() };
            let now = Moment::of(7, 300);
            for token in 0..1_000 {
                partitions.refused(Token(token), &refusal, now);
            }
            let begun = watched(&partitions);
            assert_eq!(begun, LINES as usize);
            assert!(partitions.omitted.get() > 500, "{}", partitions.omitted.get());
            // The schema of the table has changed since.
            let again: Arc<str> = "ks.t".into();
            partitions.refused(Token(0), &Refusal { table: &again, ..refusal }, now);
            let refused = partitions.places.borrow().iter().flatten().map(|limited| limited.refused).max();
            assert_eq!(refused, Some(2), "no line of its own");
            assert!(partitions.check(now.millis), "the refusals continue");
            assert_eq!(watched(&partitions), begun);
            assert!(!partitions.check(now.millis + QUIET_MS * 2));
        });
    }

    #[test]
    fn partitions_of_several_tables_with_one_token_have_lines() {
        rt::block_on(async {
            let partitions = Rc::new(LimitedPartitions::default());
            let table: Arc<str> = "ks.t".into();
            for id in 0..LINES {
                let id = TableId(Uuid::from_u128(u128::from(id) * PLACES as u128));
                let refusal =
                    Refusal { id, table: &table, kind: LimitKind::Read, observe: false, excess: Excess::default() };
                partitions.refused(Token(5), &refusal, Moment::of(7, 300));
            }
            assert_eq!(watched(&partitions), LINES as usize, "in one place, and in those behind it");
        });
    }
}
