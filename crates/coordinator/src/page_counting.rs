//! Which parts of a page count against rate limits. Pure.

use super::RequestOptions;

/// Which parts of a page count against rate limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// It is a client's page. All partitions of a first page count before one is read. A later page
    /// counts the partition in which it resumes, and each that it reads after that.
    #[default]
    Page,
    /// It is a part of an operation all of whose partitions were counted. Nothing counts.
    PartOfFirst,
    /// It is a part of a client's later page. It counts each partition that the earlier parts have
    /// not reached.
    PartOfLater,
}

impl Counting {
    /// The counting of the second part, and of later ones, of a client's page. `resumes`: whether
    /// the page continues an earlier one.
    pub fn rest_of_page(resumes: bool) -> Counting {
        if resumes { Counting::PartOfLater } else { Counting::PartOfFirst }
    }
}

/// The options of a limited page. None: those of the request.
#[derive(Default)]
pub(super) struct LimitedPage {
    /// The options of its first part.
    pub first: Option<RequestOptions>,
    /// The options of parts that are not counted.
    pub rest: Option<RequestOptions>,
    /// Whether it counts each partition that it reads after the first one.
    pub counts_reached: bool,
}

/// How the next part of a page relates to the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextPart {
    /// It is the first part, which was counted before.
    First,
    /// It reads the target that follows.
    NextTarget,
    /// It reads the rest of the same target, which was counted.
    SameTarget,
}

/// The options with which the parts of a page are read.
pub(super) struct PageCounting<'a> {
    first: &'a RequestOptions,
    exempt: &'a RequestOptions,
    /// The options of the target that was counted last, if targets are counted when they are
    /// reached.
    reached: Option<Box<RequestOptions>>,
    counts_reached: bool,
    next: NextPart,
}

impl<'a> PageCounting<'a> {
    /// The options before the first part. `limited`: those of a limited page.
    pub fn new(limited: Option<&'a LimitedPage>, options: &'a RequestOptions) -> PageCounting<'a> {
        let (first, rest) = limited.map_or((None, None), |limited| (limited.first.as_ref(), limited.rest.as_ref()));
        PageCounting {
            first: first.unwrap_or(options),
            exempt: rest.unwrap_or(options),
            reached: None,
            counts_reached: limited.is_some_and(|limited| limited.counts_reached),
            next: NextPart::First,
        }
    }

    /// Whether targets are counted when they are reached. Then only one is read at a time.
    pub fn counts_reached(&self) -> bool {
        self.counts_reached
    }

    /// The options of the next part. `count` counts the target of the part and returns its options.
    ///
    /// # Errors
    ///
    /// Those of `count`.
    pub fn next<E>(
        &mut self,
        count: impl FnOnce(&RequestOptions) -> Result<Box<RequestOptions>, E>,
    ) -> Result<&RequestOptions, E> {
        if self.next == NextPart::NextTarget && self.counts_reached {
            self.reached = Some(count(self.first)?);
        }
        Ok(match self.next {
            NextPart::SameTarget => self.exempt,
            NextPart::First | NextPart::NextTarget => self.reached.as_deref().unwrap_or(self.first),
        })
    }

    /// The options of the last part if it is read again: it was counted.
    pub fn again(&self) -> &'a RequestOptions {
        self.exempt
    }

    /// The last part was read. `is_whole`: whether its target was read to its end.
    pub fn advance(&mut self, is_whole: bool) {
        self.next = if is_whole { NextPart::NextTarget } else { NextPart::SameTarget };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Consistency;
    use replica::{Class, Context, RateLimitMode};
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

    /// The modes of parts that are read in turn. Each is whole or not.
    fn modes(limited: Option<&LimitedPage>, wholes: &[bool]) -> Vec<RateLimitMode> {
        let request = options(RateLimitMode::Off);
        let mut counting = PageCounting::new(limited, &request);
        let of_part = |is_whole: &bool| {
            let count = |_: &RequestOptions| Ok::<_, ()>(Box::new(options(RateLimitMode::CountOnly)));
            let mode = counting.next(count).expect("it is counted").context.rate_limit;
            counting.advance(*is_whole);
            mode
        };
        wholes.iter().map(of_part).collect()
    }

    #[test]
    fn each_target_counts_once() {
        use RateLimitMode::{ChargeOnly, CountOnly, Counted, Off};
        rt::block_on(async {
            let mut limited =
                LimitedPage { first: Some(options(Counted)), rest: Some(options(ChargeOnly)), counts_reached: false };
            let wholes = [false, true, true, false, false];
            assert_eq!(modes(None, &wholes), [Off; 5]);
            assert_eq!(modes(Some(&limited), &wholes), [Counted, ChargeOnly, Counted, Counted, ChargeOnly]);
            limited.counts_reached = true;
            assert_eq!(modes(Some(&limited), &wholes), [Counted, ChargeOnly, CountOnly, CountOnly, ChargeOnly]);
        });
    }

    #[test]
    fn a_refusal_ends_the_page() {
        rt::block_on(async {
            let limited = LimitedPage { counts_reached: true, ..LimitedPage::default() };
            let request = options(RateLimitMode::Off);
            let mut counting = PageCounting::new(Some(&limited), &request);
            assert!(counting.next(|_| Err("refused")).is_ok(), "the first part was counted");
            counting.advance(true);
            assert_eq!(counting.next(|_| Err("refused")).err(), Some("refused"));
        });
    }
}
