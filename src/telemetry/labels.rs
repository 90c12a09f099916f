//! The vocabulary of the metrics: one enum per label, one fixed text per value.
//!
//! Other rooms speak of outcomes, decisions and reasons in these words. A label whose values are not
//! known when the program is compiled (instances, workers, ranks, configured header names) is not
//! here; those come from the configuration and their owners resolve and remove them.

/// A label with a closed set of values, usable as an array index.
pub trait Label: Copy + 'static {
    /// The label's name in the text exposition.
    const NAME: &'static str;
    /// Every value, in the order of [`Label::index`].
    const ALL: &'static [Self];
    /// Position in [`Label::ALL`].
    fn index(self) -> usize;
    /// The label's value in the text exposition.
    fn as_str(self) -> &'static str;

    /// The value with this text.
    fn from_text(text: &str) -> Option<Self> {
        let mut values = Self::ALL.iter().copied();
        values.find(|value| value.as_str() == text)
    }
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident as $label:literal {
        $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// The value's text in metrics and log lines.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl Label for $name {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$variant,)+];

            fn index(self) -> usize {
                self as usize
            }

            fn as_str(self) -> &'static str {
                $name::as_str(self)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

label! {
    /// What a client asked for.
    Route as "route" {
        ChatCompletions = "chat_completions",
        Completions = "completions",
        /// `/v1/models` and one of them.
        Models = "models",
        /// Tokens for sub-agents.
        Delegations = "delegations",
        /// What the edge tells of itself: health, version, cluster_info, metrics.
        Status = "status",
        /// Every other path, known or not.
        Other = "other",
    }
}

label! {
    /// Why a request got no place to wait or to be served.
    QueueRefusal as "reason" {
        /// Too many wait already.
        Full = "full",
        /// No place came in time.
        Deadline = "deadline",
        /// Its client has as many requests in flight as it may.
        Client = "client",
    }
}

label! {
    /// The fleet that a number is about; of a whole request, the fleet whose leg decided its outcome.
    FleetLabel as "fleet" {
        /// The request ended before a leg, or no single leg decided.
        None = "none",
        Context = "context",
        Generation = "generation",
        Aggregated = "aggregated",
    }
}

label! {
    /// How a request ended, seen from the client.
    Outcome as "outcome" {
        Ok = "ok",
        /// The request itself was wrong: 4xx other than the ones named below.
        ClientError = "client_error",
        /// No usable credentials: 401.
        Unauthenticated = "unauthenticated",
        /// The body or the headers were above a limit: 413 or 431.
        TooLarge = "too_large",
        /// A budget of Kindred was used up: 429 or 503.
        Overloaded = "overloaded",
        /// A worker answered with 5xx.
        UpstreamError = "upstream_error",
        /// A worker answered with 4xx.
        UpstreamRefused = "upstream_refused",
        /// No connection to a worker could be made or kept.
        Unreachable = "unreachable",
        /// The fleet had no instance to choose.
        NoInstance = "no_instance",
        /// A deadline passed.
        Timeout = "timeout",
        /// The answer broke off after its first byte had gone to the client.
        StreamBroken = "stream_broken",
        /// The client left.
        ClientCancel = "client_cancel",
        /// A fault of Kindred itself.
        Internal = "internal",
    }
}

label! {
    /// How a client wants its answer.
    AnswerMode as "mode" {
        /// As events.
        Stream = "stream",
        /// As one JSON object.
        Whole = "whole",
    }
}

label! {
    /// How a leg ended, after all its attempts.
    LegResult as "result" {
        Ok = "ok",
        Failed = "failed",
        /// The client left, or the other leg failed.
        Abandoned = "abandoned",
    }
}

label! {
    /// How an instance was chosen for a leg.
    Decision as "decision" {
        /// The affinity key's binding was followed.
        Bound = "bound",
        /// The key had no binding and got one.
        New = "new",
        /// The bound instance was full or failed this once; the binding stays.
        Overflow = "overflow",
        /// The bound instance was gone, not usable, unreachable or excluded; the key was bound anew.
        Failover = "failover",
        /// The request had no affinity key, or the router does not use it.
        Unkeyed = "unkeyed",
    }
}

label! {
    /// Why an instance was ejected.
    EjectionCause as "cause" {
        Connect = "connect",
        Reset = "reset",
        Timeout = "timeout",
        /// A status of 500 or above.
        ServerError = "server_error",
    }
}

label! {
    /// How a probe of an instance ended.
    ProbeResult as "result" {
        Good = "good",
        /// An answer with another status than 200 to 299.
        Refused = "refused",
        /// No answer, or none that was HTTP.
        Failed = "failed",
        Timeout = "timeout",
    }
}

label! {
    /// Why a leg was tried again.
    RetryReason as "reason" {
        /// No connection could be made.
        Connect = "connect",
        /// The connection ended before an answer.
        Reset = "reset",
        /// The attempt's deadline passed.
        Timeout = "timeout",
        /// The worker answered with 408, 429 or 5xx, or without what the other leg needs.
        Status = "status",
        /// The instance was taken out or left the fleet while its answer was waited for.
        Lost = "lost",
    }
}

label! {
    /// Why the router `kv_cache_aware` left a request to its conversation router.
    FallbackReason as "reason" {
        ChatWithoutTokens = "chat_without_tokens",
        CompletionWithoutTokens = "completion_without_tokens",
        /// Nothing is known of the prompt any more, or it has none.
        NoPrompt = "no_prompt",
    }
}

label! {
    /// What conditional disaggregation made of a request.
    ConditionalWay as "way" {
        /// Its generation instance served it whole.
        Local = "local",
        /// It had a context leg.
        Disaggregated = "disaggregated",
    }
}

label! {
    /// What became of a request's claim to a parent session.
    ClaimOutcome as "outcome" {
        /// No parent was named.
        None = "none",
        /// Taken as it arrived, because there is no `gateway` section.
        Trusted = "trusted",
        /// Allowed by the client's policy.
        Authorised = "authorised",
        /// Allowed, and routed by the root of the sub-agent that was named.
        Root = "root",
        /// Dropped: the parent session was not seen from this client (policy `owned`).
        NotOwned = "not_owned",
        /// Dropped: the client may name no parent at all (policy `none`).
        NotAllowed = "not_allowed",
        /// Dropped: the client needs a delegation and sent none, or several (policy `delegated`).
        NotDelegated = "not_delegated",
        /// Dropped: the delegation is another client's or another session's, forged, or over.
        BadDelegation = "bad_delegation",
        /// Dropped: a sub-agent was named as a parent.
        Nested = "nested",
        /// Dropped: the session named itself.
        SelfNamed = "self_named",
        /// Dropped: several copies of the parent header named different sessions.
        Ambiguous = "ambiguous",
        /// Dropped: sub-agent affinity is off (no parent header is configured).
        Disabled = "disabled",
    }
}

impl ClaimOutcome {
    /// Whether there was a claim that is not followed.
    pub fn is_dropped(self) -> bool {
        !matches!(
            self,
            Self::None | Self::Trusted | Self::Authorised | Self::Root
        )
    }
}

label! {
    /// How a client was recognised.
    AuthenticationOutcome as "outcome" {
        /// A configured API key.
        Ok = "ok",
        /// Let in without credentials, as configured.
        Anonymous = "anonymous",
        /// No credentials where some are needed.
        Missing = "missing",
        /// Credentials that belong to nobody, or are not of the form `Bearer KEY`.
        Invalid = "invalid",
        /// More than one copy of a header, or credentials of different clients.
        Ambiguous = "ambiguous",
        /// Good credentials of nobody who is configured.
        NotAClient = "not_a_client",
        /// A token before or after its time.
        Expired = "expired",
        /// A token by a key that is not known (yet).
        UnknownKey = "unknown_key",
        /// A token while no key of its issuer is known.
        NoKeys = "no_keys",
        /// Not looked at: too many wrong ones came from its address.
        Blocked = "blocked",
    }
}

impl AuthenticationOutcome {
    /// Whether somebody may have been guessing.
    pub fn is_a_guess(self) -> bool {
        matches!(self, Self::Invalid | Self::Ambiguous)
    }
}

label! {
    /// By what a client was recognised.
    AuthenticationMethod as "method" {
        /// By nothing.
        None = "none",
        ApiKey = "api_key",
        /// A signed token.
        Jwt = "jwt",
        /// The certificate of its connection.
        Certificate = "certificate",
        /// It need not say who it is.
        Anonymous = "anonymous",
    }
}

label! {
    /// From where clients' credentials are renewed.
    CredentialSource as "source" {
        KeysFile = "keys_file",
        JwksFile = "jwks_file",
        JwksUrl = "jwks_url",
    }
}

label! {
    /// Which of a client's own limits a request met.
    ClientLimit as "limit" {
        Requests = "requests_per_second",
        Tokens = "prompt_tokens_per_minute",
        SubAgents = "subagents_in_flight",
        InFlight = "max_in_flight",
    }
}

label! {
    /// Why a connection was not taken.
    ConnectionRefusal as "bound" {
        /// There were too many in all.
        All = "all",
        /// There were too many from its address.
        Address = "address",
        /// There were too many at the operator's port.
        Operator = "operator",
    }
}

label! {
    /// Why what a client sent never became a request.
    HeadRefusal as "reason" {
        Slow = "slow",
        Invalid = "invalid",
        TooLarge = "too_large",
    }
}

label! {
    /// Which of the two signatures a worker filter looked at.
    Check as "check" {
        Affinity = "affinity",
        KvTransfer = "kv_transfer",
    }
}

label! {
    /// What a worker filter found (specification section 5.8).
    VerificationOutcome as "outcome" {
        /// Present and signed correctly.
        Verified = "verified",
        /// Nothing to verify: no affinity header, no protected field.
        Absent = "absent",
        /// Ignored: the request has no role in which the header counts.
        NotApplicable = "not_applicable",
        /// Refused: the signature header is missing.
        Unsigned = "unsigned",
        /// Refused: the fleet's profile takes no such affinity (an id that is blank or not trimmed, a
        /// signature without an id, no session of its own, or not a context request).
        Malformed = "malformed",
        /// Refused: the signature does not fit.
        Forged = "forged",
        /// Signed content arrived and no key is configured.
        KeyMissing = "key_missing",
        /// Refused: an internal header came more than once.
        Repeated = "repeated",
    }
}

label! {
    /// A key's place in its list; key 0 is the one that signs.
    KeyIndex as "key" {
        Key0 = "0",
        Key1 = "1",
        Key2 = "2",
        Key3 = "3",
        Key4 = "4",
        Key5 = "5",
        Key6 = "6",
        Key7 = "7",
    }
}

label! {
    /// Why a request was placed on its ADP rank.
    PlacementReason as "reason" {
        /// The key's rank was followed.
        Sticky = "sticky",
        /// The key had no rank and got one.
        New = "new",
        /// The key's rank was full; the binding stays.
        Overflow = "overflow",
        /// The request named its rank itself.
        Explicit = "explicit",
        /// The request had no key.
        Unkeyed = "unkeyed",
    }
}

label! {
    /// Internal header names that are removed from every client's request. Names that the
    /// configuration adds are labels too, under their configured spelling.
    PrunedHeader as "header" {
        AffinityId = "x-trtllm-subagent-affinity-id",
        AffinityAuth = "x-trtllm-subagent-affinity-auth",
        DisaggAuth = "x-trtllm-disagg-auth",
        Msgpack = "x-trtllm-msgpack",
        /// Any other name that starts with `x-trtllm-`.
        OtherTrtllm = "x-trtllm-*",
        DataParallelRank = "x-data-parallel-rank",
        /// Any name that starts with `x-kindred-`.
        Kindred = "x-kindred-*",
    }
}

label! {
    /// Body fields that are removed from every client's request, in the words of `wire/pruning`.
    PrunedField as "field" {
        DisaggregatedParams = "disaggregated_params",
        PromptTokenIdsB64 = "prompt_token_ids_b64",
        SubagentAffinityId = "conversation_params.subagent_affinity_id",
        RoutedDpRank = "routed_dp_rank",
        DataParallelRank = "data_parallel_rank",
        DisaggPrefillDpRank = "disagg_prefill_dp_rank",
        BootstrapHost = "bootstrap_host",
        BootstrapPort = "bootstrap_port",
        BootstrapRoom = "bootstrap_room",
        KvTransferParams = "kv_transfer_params",
        EcTransferParams = "ec_transfer_params",
        XargsKvTransferParams = "vllm_xargs.kv_transfer_params",
        XargsEcTransferParams = "vllm_xargs.ec_transfer_params",
    }
}

label! {
    /// What a reload did.
    ReloadResult as "result" {
        /// The new configuration is in use.
        Applied = "applied",
        /// The file was refused; the old configuration stays.
        Rejected = "rejected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound<L: Label + std::fmt::Debug>() {
        let mut texts = std::collections::HashSet::new();
        for (position, value) in L::ALL.iter().enumerate() {
            assert_eq!(value.index(), position, "{value:?}");
            let found = L::from_text(value.as_str()).map(Label::index);
            assert_eq!(found, Some(position), "{value:?}");
            assert!(
                texts.insert(value.as_str()),
                "{value:?} repeats another text"
            );
        }
    }

    #[test]
    fn indexes_follow_the_order_and_texts_are_unique() {
        sound::<Route>();
        sound::<FleetLabel>();
        sound::<Outcome>();
        sound::<AnswerMode>();
        sound::<LegResult>();
        sound::<Decision>();
        sound::<EjectionCause>();
        sound::<ProbeResult>();
        sound::<RetryReason>();
        sound::<FallbackReason>();
        sound::<ConditionalWay>();
        sound::<ClaimOutcome>();
        sound::<AuthenticationOutcome>();
        sound::<ClientLimit>();
        sound::<ConnectionRefusal>();
        sound::<HeadRefusal>();
        sound::<AuthenticationMethod>();
        sound::<CredentialSource>();
        sound::<Check>();
        sound::<VerificationOutcome>();
        sound::<KeyIndex>();
        sound::<PlacementReason>();
        sound::<PrunedHeader>();
        sound::<PrunedField>();
        sound::<ReloadResult>();
    }
}
