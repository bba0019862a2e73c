//! Patterns of LIKE: `%` matches any characters, `_` any single one, a backslash escapes the next
//! one.
//!
//! A test does not yield, so its time is bounded. It grows with the length of the text. If `_`
//! follows a `%`, it also grows with 1/64 of the length of the pattern, which is limited.

use crate::error::Error;
use memchr::memmem::Finder;
use rt::hash::HashMap;

/// The limit on the bytes of a pattern.
pub const MAX_PATTERN_BYTES: usize = 4096;

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    /// The prefix of the text. It is the entire text if nothing follows.
    first: Run,
    /// The runs that follow, each after a `%`, in order. The last one must end the text.
    rest: Vec<Run>,
}

/// The characters between two `%`.
#[derive(Debug, Default)]
struct Run {
    /// `None` matches any character.
    chars: Vec<Option<char>>,
    search: Option<Search>,
}

/// How the first occurrence of a run is searched.
#[derive(Debug)]
enum Search {
    /// For a run without `_`.
    Plain(Box<Finder<'static>>),
    /// For each character, the positions in the run that it matches, as bits.
    Bits { places: HashMap<char, Box<[u64]>>, others: Box<[u64]> },
}

impl Pattern {
    /// Compiles a pattern. An error if it is too long or not UTF-8.
    pub fn new(pattern: &[u8]) -> Result<Pattern, Error> {
        if pattern.len() > MAX_PATTERN_BYTES {
            let len = pattern.len();
            return Err(Error::invalid(format!("LIKE pattern of {len} bytes is longer than {MAX_PATTERN_BYTES}")));
        }
        let text = std::str::from_utf8(pattern).map_err(|_| Error::invalid("LIKE pattern is not valid UTF-8"))?;
        let mut runs = vec![Run::default()];
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let one = match c {
                '%' => {
                    runs.push(Run::default());
                    continue;
                }
                '_' => None,
                '\\' => Some(chars.next().unwrap_or('\\')),
                c => Some(c),
            };
            runs.last_mut().expect("there is a first").chars.push(one);
        }
        let mut runs = runs.into_iter();
        let first = runs.next().expect("there is a first");
        Ok(Pattern { first, rest: runs.map(Run::searched).collect() })
    }

    /// The bytes of memory that it takes, approximately.
    pub fn held_bytes(&self) -> usize {
        std::iter::once(&self.first).chain(&self.rest).map(Run::held_bytes).sum()
    }

    /// Whether a text matches. Invalid UTF-8 never matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        let Some(mut left) = self.first.prefix_of(text) else { return false };
        let Some((last, middle)) = self.rest.split_last() else { return left.is_empty() };
        for run in middle {
            match run.find(left) {
                Some(behind) => left = behind,
                None => return false,
            }
        }
        last.ends(left)
    }
}

impl Run {
    fn held_bytes(&self) -> usize {
        let places = match &self.search {
            Some(Search::Bits { places, others }) => (places.len() + 1) * size_of_val(&**others),
            Some(Search::Plain(_)) | None => self.chars.len(),
        };
        size_of::<Run>() + size_of_val(&self.chars[..]) + places
    }

    /// Prepares the run for searches.
    fn searched(mut self) -> Run {
        let plain: Option<String> = self.chars.iter().copied().collect();
        self.search = Some(match plain {
            Some(plain) => Search::Plain(Box::new(Finder::new(plain.as_bytes()).into_owned())),
            None => Search::bits(&self.chars),
        });
        self
    }

    /// The rest of the text after the run, if the text begins with the run.
    fn prefix_of<'t>(&self, text: &'t str) -> Option<&'t str> {
        let mut left = text.chars();
        for wanted in &self.chars {
            let found = left.next()?;
            if wanted.is_some_and(|wanted| wanted != found) {
                return None;
            }
        }
        Some(left.as_str())
    }

    /// Whether the text ends with the run.
    fn ends(&self, text: &str) -> bool {
        let mut left = text.chars();
        self.chars.iter().rev().all(|wanted| left.next_back().is_some_and(|found| wanted.is_none_or(|it| it == found)))
    }

    /// The rest of the text after the first occurrence of the run.
    fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self.search.as_ref()? {
            Search::Plain(finder) => {
                let at = finder.find(text.as_bytes())?;
                Some(&text[at + finder.needle().len()..])
            }
            Search::Bits { places, others } => {
                // Bit i: the last i + 1 characters of the text match the first i + 1 of the run.
                let mut state = vec![0u64; others.len()];
                let last = self.chars.len() - 1;
                for (at, c) in text.char_indices() {
                    let mut carry = 1;
                    for (word, allowed) in state.iter_mut().zip(places.get(&c).unwrap_or(others)) {
                        let shifted = *word << 1 | carry;
                        carry = *word >> 63;
                        *word = shifted & allowed;
                    }
                    if state[last / 64] >> (last % 64) & 1 == 1 {
                        return Some(&text[at + c.len_utf8()..]);
                    }
                }
                None
            }
        }
    }
}

impl Search {
    fn bits(chars: &[Option<char>]) -> Search {
        let mut others = vec![0u64; chars.len().div_ceil(64)].into_boxed_slice();
        for (i, _) in chars.iter().enumerate().filter(|(_, wanted)| wanted.is_none()) {
            others[i / 64] |= 1 << (i % 64);
        }
        let mut places: HashMap<char, Box<[u64]>> = HashMap::default();
        for (i, wanted) in chars.iter().enumerate() {
            let Some(c) = wanted else { continue };
            places.entry(*c).or_insert_with(|| others.clone())[i / 64] |= 1 << (i % 64);
        }
        Search::Bits { places, others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(text: &str, pattern: &str) -> bool {
        Pattern::new(pattern.as_bytes()).expect("a good pattern").matches(text.as_bytes())
    }

    #[test]
    fn patterns() {
        for (text, pattern, matches) in [
            ("abc", "abc", true),
            ("abc", "a%", true),
            ("abc", "%c", true),
            ("abc", "%b%", true),
            ("abc", "a_c", true),
            ("abc", "a_", false),
            ("", "%", true),
            ("", "", true),
            ("a", "", false),
            ("a", "_%", true),
            ("", "_%", false),
            ("a%c", "a\\%c", true),
            ("abc", "a\\%c", false),
            ("aaab", "%ab", true),
            ("aba", "ab%ba", false),
            ("xäöü", "%ä_ü", true),
            ("xäöü", "%_ö%", true),
            ("ab", "%a_%_%", false),
            ("a\\", "a\\", true),
            ("mississippi", "m%iss%pi", true),
            ("mississippi", "m%i_s%i_pi", true),
            ("mississippi", "m%iss%x", false),
        ] {
            assert_eq!(like(text, pattern), matches, "{text} like {pattern}");
        }
    }

    #[test]
    fn it_agrees_with_backtracking() {
        fn slow(text: &[char], pattern: &[char]) -> bool {
            match pattern.split_first() {
                None => text.is_empty(),
                Some(('%', rest)) => (0..=text.len()).any(|i| slow(&text[i..], rest)),
                Some((c, rest)) => {
                    text.split_first().is_some_and(|(t, behind)| (*c == '_' || c == t) && slow(behind, rest))
                }
            }
        }
        let words = |letters: &[char], len: u32| -> Vec<Vec<char>> {
            let all = (0..=len).flat_map(|len| {
                (0..letters.len().pow(len)).map(move |n| (0..len).map(move |i| n / letters.len().pow(i)).collect())
            });
            all.map(|word: Vec<usize>| word.into_iter().map(|n| letters[n % letters.len()]).collect()).collect()
        };
        for pattern in words(&['a', 'b', '%', '_'], 5) {
            let text: String = pattern.iter().collect();
            let compiled = Pattern::new(text.as_bytes()).expect("a good pattern");
            for word in words(&['a', 'b'], 5) {
                let given: String = word.iter().collect();
                assert_eq!(compiled.matches(given.as_bytes()), slow(&word, &pattern), "{given} like {text}");
            }
        }
    }

    #[test]
    fn runs_of_more_than_64_characters() {
        let text = format!("{}{}", "ab".repeat(300), "x".repeat(100));
        assert!(like(&text, &format!("%{}_%x", "ab_b".repeat(50))));
        assert!(!like(&text, &format!("%{}_y%x", "ab_b".repeat(50))));
    }

    #[test]
    fn a_long_pattern_is_refused() {
        assert!(Pattern::new(&vec![b'a'; MAX_PATTERN_BYTES]).is_ok());
        assert!(Pattern::new(&vec![b'a'; MAX_PATTERN_BYTES + 1]).is_err());
    }
}
