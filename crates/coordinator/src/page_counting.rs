//! The parts of a page that count against rate limits, target by target. Pure.

use super::RequestOptions;
use replica::{Context, RateLimitMode};

/// Which parts of a page count against rate limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// It is a client's page. All partitions of a first page count before one is read. A later page
    /// counts the partition in which it resumes, and each that it reads after that.
    #[default]
    Page,
    /// It is a later part of an operation that counted all its partitions before the first part.
    PartOfFirst {
        /// The partitions before this place have been asked for: see [`super::QueryPage::asked`].
        asked: usize,
    },
    /// It is a part of a client's later page. It counts each partition that the earlier parts have
    /// not reached.
    PartOfLater,
    /// It is a part of an operation that was accepted. Nothing counts.
    Accepted,
}

impl Counting {
    /// The counting of the next part of an operation. `resumes`: whether the client's page
    /// continues an earlier one. `asked`: that of the last part.
    pub fn next_part(resumes: bool, asked: usize) -> Counting {
        if resumes { Counting::PartOfLater } else { Counting::PartOfFirst { asked } }
    }
}

/// The options with which the targets of a page are read. Each replica counts and decides once on
/// each target, when it is first asked for it. A target that is asked for again continues what was
/// accepted: it is the rest of a partition, or its answer was not used.
///
/// Targets are named by their place among the partitions of the query ([`super::targets`]).
pub(super) struct PageCounting<'a> {
    /// The options of targets that are asked for the first time.
    first: &'a RequestOptions,
    /// The options of others. `None` until there is one.
    others: Option<Box<OtherOptions>>,
    /// The mode of targets that are asked for again.
    continued_mode: RateLimitMode,
    /// Whether targets are counted when they are reached. Then only one is read at a time.
    counts_reached: bool,
    /// Whether no part was read yet: its target was counted before.
    is_first_part: bool,
    /// All targets before this place have been asked for; and before the current part.
    asked: usize,
    asked_before: usize,
}

#[derive(Default)]
struct OtherOptions {
    /// The options of the target that was counted last, if targets are counted when they are
    /// reached.
    reached: Option<RequestOptions>,
    /// The options of targets that are asked for again.
    continued: Option<RequestOptions>,
}

impl<'a> PageCounting<'a> {
    /// The options before the first part. `asked`: the targets before this place have been asked
    /// for. `charges`: whether the bytes of targets that are asked for again are charged.
    #[inline]
    pub fn new(first: &'a RequestOptions, asked: usize, charges: bool, counts_reached: bool) -> PageCounting<'a> {
        let continued_mode = if charges { RateLimitMode::ChargeOnly } else { RateLimitMode::Exempt };
        let (others, is_first_part) = (None, true);
        PageCounting { first, others, continued_mode, counts_reached, is_first_part, asked, asked_before: asked }
    }

    /// Whether targets are counted when they are reached. Then only one is read at a time.
    pub fn counts_reached(&self) -> bool {
        self.counts_reached
    }

    /// The targets before this place have been asked for.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Begins a part, whose first target is at a place. `count` counts a target that is reached,
    /// and returns its options.
    ///
    /// # Errors
    ///
    /// Those of `count`.
    #[inline]
    pub fn begin<E>(
        &mut self,
        place: usize,
        count: impl FnOnce(&RequestOptions) -> Result<RequestOptions, E>,
    ) -> Result<(), E> {
        self.asked_before = self.asked;
        let is_first_part = std::mem::replace(&mut self.is_first_part, false);
        if self.counts_reached && !is_first_part && place >= self.asked {
            self.others.get_or_insert_default().reached = Some(count(self.first)?);
        }
        self.add(place);
        Ok(())
    }

    /// Adds a target to the current part.
    #[inline]
    pub fn add(&mut self, place: usize) {
        match place < self.asked_before {
            true => self.make_continued(),
            false => self.asked = self.asked.max(place.saturating_add(1)),
        }
    }

    /// The target of the current part is asked for again: a replica refused it as routed by
    /// outdated metadata, perhaps after it had counted it.
    #[cold]
    pub fn repeat(&mut self, place: usize) {
        self.asked_before = self.asked_before.max(place.saturating_add(1));
        self.make_continued();
    }

    #[cold]
    fn make_continued(&mut self) {
        let first = self.first;
        let others = self.others.get_or_insert_default();
        others.continued.get_or_insert_with(|| {
            let context = Context { rate_limit: self.continued_mode, ..first.context.clone() };
            RequestOptions { context, consistency: first.consistency }
        });
    }

    /// The options of a target of the current part.
    #[inline]
    pub fn options(&self, place: usize) -> &RequestOptions {
        let Some(others) = &self.others else { return self.first };
        let continued = others.continued.as_ref().filter(|_| place < self.asked_before);
        continued.or(others.reached.as_ref()).unwrap_or(self.first)
    }

    /// Whether replicas decide on targets of the current part: the answers of all of them matter.
    pub fn is_deferred(&self) -> bool {
        let reached = self.others.as_ref().and_then(|others| others.reached.as_ref());
        let first = reached.unwrap_or(self.first);
        matches!(first.context.rate_limit, RateLimitMode::Deferred { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Consistency;
    use replica::Class;
    use rt::sync::{Cancel, Deadline};
    use rt::time::Duration;

    fn options(rate_limit: RateLimitMode) -> RequestOptions {
        let context = Context {
            class: Class::User,
            deadline: Deadline::after(Duration::from_secs(1)),
            cancel: Cancel::default(),
            trace: None,
            metadata_number: 1,
            large_data: None,
            rate_limit,
        };
        RequestOptions { context, consistency: Consistency::One }
    }

    /// The modes of the targets of parts that are read in turn.
    fn modes(counting: &mut PageCounting<'_>, parts: &[&[usize]]) -> Vec<RateLimitMode> {
        let of_part = |places: &&[usize]| {
            let count = |_: &RequestOptions| Ok::<_, ()>(options(RateLimitMode::CountOnly));
            counting.begin(places[0], count).expect("it is counted");
            places[1..].iter().for_each(|place| counting.add(*place));
            places.iter().map(|place| counting.options(*place).context.rate_limit).collect::<Vec<_>>()
        };
        parts.iter().flat_map(of_part).collect()
    }

    #[test]
    fn each_target_is_decided_once() {
        use RateLimitMode::{ChargeOnly, Counted, Exempt};
        rt::block_on(async {
            let counted = options(Counted);
            // The rest of target 0, also beside the next one, and target 2 after it was not used.
            let parts: [&[usize]; 4] = [&[0], &[0, 1, 2], &[2, 3], &[3]];
            let mut counting = PageCounting::new(&counted, 0, true, false);
            let expected = [Counted, ChargeOnly, Counted, Counted, ChargeOnly, Counted, ChargeOnly];
            assert_eq!(modes(&mut counting, &parts), expected);
            assert_eq!(counting.asked(), 4);
            // The next part of the operation.
            let mut counting = PageCounting::new(&counted, 4, false, false);
            assert_eq!(modes(&mut counting, &[&[3], &[4, 5]]), [Exempt, Counted, Counted]);
            let mut accepted = PageCounting::new(&counted, usize::MAX, false, false);
            assert_eq!(modes(&mut accepted, &parts), [Exempt; 7]);
        });
    }

    #[test]
    fn a_later_page_counts_what_it_reaches() {
        use RateLimitMode::{ChargeOnly, CountOnly, Counted};
        rt::block_on(async {
            let counted = options(Counted);
            let mut counting = PageCounting::new(&counted, 0, true, true);
            // Target 2 was counted before.
            let parts: [&[usize]; 4] = [&[2], &[2], &[3], &[3]];
            assert_eq!(modes(&mut counting, &parts), [Counted, ChargeOnly, CountOnly, ChargeOnly]);
            // A part that resumes in a target.
            let mut counting = PageCounting::new(&counted, 3, true, true);
            assert_eq!(modes(&mut counting, &[&[2], &[3]]), [ChargeOnly, CountOnly]);
        });
    }

    #[test]
    fn targets_of_a_scan_are_not_counted() {
        rt::block_on(async {
            let off = options(RateLimitMode::Off);
            let mut counting = PageCounting::new(&off, 0, false, false);
            let parts: [&[usize]; 2] = [&[usize::MAX, usize::MAX], &[usize::MAX]];
            assert_eq!(modes(&mut counting, &parts), [RateLimitMode::Off; 3]);
        });
    }

    #[test]
    fn a_refusal_ends_the_page() {
        rt::block_on(async {
            let request = options(RateLimitMode::Off);
            let mut counting = PageCounting::new(&request, 0, true, true);
            assert!(counting.begin(0, |_| Err("refused")).is_ok(), "the first part was counted");
            assert_eq!(counting.begin(1, |_| Err("refused")).err(), Some("refused"));
        });
    }
}
