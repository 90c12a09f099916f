//! Text to tokens and the words of an answer, the same on every worker and in every run.
//!
//! A token is a run of at most eight bytes of one word with the blank before it. Cutting goes from
//! left to right and looks at nothing further, so a text that continues another one begins with the
//! other's tokens but for the last. It knows no real vocabulary and must not depend on anything but
//! its input.

use super::blocks::mix;

/// One past the largest token id.
pub const VOCABULARY: u32 = 128_000;

/// Ids below this one are reserved for the marks between messages.
const FIRST_TEXT_TOKEN: u32 = 1_000;

/// Longest token, bytes.
const LONGEST: usize = 8;

/// Words of answers; with the blank before it each is one token.
const WORDS: [&str; 32] = [
    "alder", "amber", "birch", "brook", "cedar", "cliff", "cloud", "coral", "delta", "ember",
    "fern", "field", "flint", "frost", "grove", "hazel", "heath", "holly", "iris", "larch",
    "maple", "marsh", "meadow", "moss", "oak", "pine", "reed", "river", "sage", "stone", "thorn",
    "willow",
];

/// Appends the tokens of `text`.
pub fn tokenize(text: &str, tokens: &mut Vec<u32>) {
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(piece_length(rest));
        tokens.push(text_token(piece));
        rest = after;
    }
}

/// The token that stands for the boundary `name`, such as the beginning of a role's message.
pub fn mark(name: &str) -> u32 {
    let hash = hash(name.as_bytes());
    u32::try_from(hash % u64::from(FIRST_TEXT_TOKEN)).unwrap_or_default()
}

/// The token of one piece.
pub fn text_token(piece: &str) -> u32 {
    let range = u64::from(VOCABULARY - FIRST_TEXT_TOKEN);
    let offset = u32::try_from(hash(piece.as_bytes()) % range).unwrap_or_default();
    FIRST_TEXT_TOKEN + offset
}

/// A digest of token ids: equal for equal prompts.
pub fn digest(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0x6b69_6e64_7265_6421, |hash, token| {
        mix(hash.rotate_left(5) ^ (u64::from(*token) + 1))
    })
}

/// The text of an answer's token number `index`, of choice number `choice`, to a prompt of that
/// `digest`. The first token is the digest's eight hexadecimal digits, so a reader of an answer sees
/// which prompt it is the answer to.
pub fn answer_piece(digest: u64, choice: u32, index: u32) -> String {
    let seed = mix(digest.wrapping_add(u64::from(choice)));
    if index == 0 {
        return format!("{:08x}", seed >> 32);
    }
    let pick = usize::try_from(mix(seed ^ u64::from(index)) % 32).unwrap_or_default();
    format!(" {}", WORDS.get(pick).copied().unwrap_or("stone"))
}

/// Length in bytes of the token at the beginning of `text`, which is not empty.
fn piece_length(text: &str) -> usize {
    let mut length = 0;
    for (at, character) in text.char_indices() {
        let end = at + character.len_utf8();
        let blank = character.is_whitespace();
        if at > 0 && (blank || end > LONGEST) {
            return at;
        }
        length = end;
        if blank && text[end..].starts_with(char::is_whitespace) {
            return end;
        }
    }
    length
}

fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        tokenize(text, &mut tokens);
        tokens
    }

    #[test]
    fn one_short_word_is_one_token() {
        assert_eq!(tokens("alder amber birch").len(), 3);
        assert_eq!(tokens("a  b").len(), 3);
        assert_eq!(tokens("internationalisation").len(), 3);
        assert_eq!(tokens(""), Vec::<u32>::new());
    }

    #[test]
    fn an_answer_that_is_read_again_has_the_tokens_it_was_made_of() {
        let pieces: Vec<String> = (0..40).map(|index| answer_piece(7, 0, index)).collect();
        let made: Vec<u32> = pieces.iter().map(|piece| text_token(piece)).collect();
        assert_eq!(tokens(&pieces.concat()), made);
    }

    #[test]
    fn choices_and_prompts_differ() {
        assert_ne!(answer_piece(1, 0, 0), answer_piece(2, 0, 0));
        assert_ne!(answer_piece(1, 0, 0), answer_piece(1, 1, 0));
        assert_ne!(digest(&[0, 0]), digest(&[0]));
    }

    proptest! {
        #[test]
        fn a_continued_text_begins_with_the_tokens_of_its_beginning(
            first in "[a-z é\n界]{0,60}", second in "[a-z é\n界]{0,60}",
        ) {
            let before = tokens(&first);
            let after = tokens(&format!("{first}{second}"));
            let stable = before.len().saturating_sub(1);
            prop_assert_eq!(&before[..stable], &after[..stable]);
            prop_assert!(after.iter().all(|token| (FIRST_TEXT_TOKEN..VOCABULARY).contains(token)));
        }
    }
}
