//! Why a plan does a problem one way and not the next best.

use smallvec::SmallVec;

/// A quantity by name.
pub type Metric = (&'static str, u64);

/// Made with every plan, in a call that takes microseconds, so that nothing is put into words before it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// A kernel's variant, or a tile.
    pub chosen: &'static str,
    /// The next best; None where nothing else could do the problem.
    pub over: Option<&'static str>,
    pub because: &'static str,
    /// What decided, and what it was compared with.
    pub metrics: Option<[Metric; 2]>,
}

/// One for each thing that was chosen.
pub type Reasons = SmallVec<[Reason; 1]>;

impl Reason {
    pub fn new(
        chosen: &'static str,
        over: impl Into<Option<&'static str>>,
        because: &'static str,
        metrics: [Metric; 2],
    ) -> Reason {
        Reason { chosen, over: over.into(), because, metrics: Some(metrics) }
    }

    /// Where nothing was counted.
    pub fn plain(
        chosen: &'static str,
        over: impl Into<Option<&'static str>>,
        because: &'static str,
    ) -> Reason {
        Reason { chosen, over: over.into(), because, metrics: None }
    }

    /// A developer's wish; `own` is what the plan would have chosen.
    pub fn asked_for(chosen: &'static str, own: &'static str) -> Reason {
        Reason::plain(chosen, (chosen != own).then_some(own), "it was asked for")
    }
}

/// A candidate, and what it takes.
pub type Taking<T> = (T, f64);

/// The candidate that takes least, with what it takes, and the next after it; of equals, the first.
pub fn least_two<T: Copy>(
    candidates: impl Iterator<Item = Taking<T>>,
) -> Option<(Taking<T>, Option<Taking<T>>)> {
    let (mut best, mut next): (Option<Taking<T>>, Option<Taking<T>>) = (None, None);
    let less = |a: f64, b: Option<Taking<T>>| b.is_none_or(|b| a.total_cmp(&b.1).is_lt());
    for candidate in candidates {
        if less(candidate.1, best) {
            (best, next) = (Some(candidate), best);
        } else if less(candidate.1, next) {
            next = Some(candidate);
        }
    }
    best.map(|best| (best, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_and_the_next() {
        let two = |times: &[f64]| least_two(times.iter().copied().enumerate());
        assert_eq!(two(&[]), None);
        assert_eq!(two(&[3.0]), Some(((0, 3.0), None)));
        assert_eq!(two(&[3.0, 1.0, 2.0]), Some(((1, 1.0), Some((2, 2.0)))));
        assert_eq!(two(&[1.0, 4.0, 1.0, 4.0]), Some(((0, 1.0), Some((2, 1.0)))));
    }
}
