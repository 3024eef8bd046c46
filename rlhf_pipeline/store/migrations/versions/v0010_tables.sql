-- {timestamp} is the database's name for a type of moments.

CREATE TABLE annotation_rules (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    created_at {timestamp} NOT NULL,
    created_by VARCHAR NOT NULL,
    CONSTRAINT pk_annotation_rules PRIMARY KEY (organization_id, project_id, version)
);

CREATE TABLE audit (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    seq BIGINT NOT NULL,
    at {timestamp} NOT NULL,
    actor VARCHAR NOT NULL,
    action VARCHAR NOT NULL,
    object_id VARCHAR NOT NULL,
    payload_digest VARCHAR(64) NOT NULL,
    prev_hash VARCHAR(64) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (organization_id, project_id, seq)
);

CREATE TABLE calibrations (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    reward_model VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    fitted_at {timestamp} NOT NULL,
    report TEXT NOT NULL,
    calibrator TEXT NOT NULL,
    CONSTRAINT pk_calibrations PRIMARY KEY (organization_id, project_id, reward_model, version)
);

CREATE TABLE comparisons (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    comparison_id VARCHAR NOT NULL,
    day VARCHAR(10) NOT NULL,
    prompt_id VARCHAR NOT NULL,
    prompt TEXT NOT NULL,
    completion_a_id VARCHAR NOT NULL,
    completion_b_id VARCHAR NOT NULL,
    completion_a TEXT NOT NULL,
    completion_b TEXT NOT NULL,
    model_version_a VARCHAR NOT NULL,
    model_version_b VARCHAR NOT NULL,
    category VARCHAR NOT NULL,
    repeat_of VARCHAR,
    position BIGINT NOT NULL,
    seed BIGINT NOT NULL,
    published_at {timestamp} NOT NULL,
    source VARCHAR,
    source_pair_id VARCHAR,
    split_group VARCHAR,
    split VARCHAR,
    gold VARCHAR,
    flag VARCHAR,
    pair_key VARCHAR,
    written_by VARCHAR,
    CONSTRAINT pk_comparisons PRIMARY KEY (organization_id, project_id, comparison_id)
);
CREATE INDEX ix_comparisons_category
    ON comparisons (organization_id, project_id, category, day, position, comparison_id);
CREATE INDEX ix_comparisons_day
    ON comparisons (organization_id, project_id, day, position, comparison_id);
CREATE INDEX ix_comparisons_gold
    ON comparisons (organization_id, project_id, day, position, comparison_id)
    WHERE gold IS NOT NULL;
CREATE INDEX ix_comparisons_pair_key ON comparisons (organization_id, project_id, pair_key);
CREATE INDEX ix_comparisons_prompt
    ON comparisons (organization_id, project_id, comparison_id, prompt_id, repeat_of);
CREATE UNIQUE INDEX ix_comparisons_source_pair_id
    ON comparisons (organization_id, project_id, source_pair_id)
    WHERE source_pair_id IS NOT NULL;

CREATE TABLE completion_cache (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    cache_key VARCHAR NOT NULL,
    value TEXT NOT NULL,
    stored_at {timestamp} NOT NULL,
    last_hit_at {timestamp},
    CONSTRAINT pk_completion_cache PRIMARY KEY (organization_id, project_id, cache_key)
);

CREATE TABLE decisions (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    decision_id BIGINT NOT NULL,
    action VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    attempt INTEGER NOT NULL,
    run_id VARCHAR,
    leased_until {timestamp},
    max_seq BIGINT NOT NULL,
    decided_at {timestamp} NOT NULL,
    error TEXT,
    record TEXT NOT NULL,
    CONSTRAINT pk_decisions PRIMARY KEY (organization_id, project_id, decision_id),
    CONSTRAINT ck_decisions_state
        CHECK (state IN ('held', 'pending', 'submitted', 'succeeded', 'failed'))
);
CREATE INDEX ix_decisions_state ON decisions (organization_id, project_id, state);

CREATE TABLE detector_states (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    model_version VARCHAR NOT NULL,
    stream VARCHAR NOT NULL,
    detector VARCHAR NOT NULL,
    last_seq BIGINT NOT NULL,
    state TEXT NOT NULL,
    saved_at {timestamp} NOT NULL,
    CONSTRAINT pk_detector_states
        PRIMARY KEY (organization_id, project_id, model_version, stream, detector)
);

CREATE TABLE failed_logins (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    who VARCHAR NOT NULL,
    n_failed INTEGER NOT NULL,
    last_failed_at {timestamp} NOT NULL,
    CONSTRAINT pk_failed_logins PRIMARY KEY (organization_id, project_id, who)
);

CREATE TABLE feedback (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    feedback_id BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    session_id VARCHAR,
    created_by VARCHAR NOT NULL,
    created_at {timestamp} NOT NULL,
    record TEXT NOT NULL,
    comparison_id VARCHAR,
    vote_id VARCHAR,
    CONSTRAINT pk_feedback PRIMARY KEY (organization_id, project_id, feedback_id),
    CONSTRAINT ck_feedback_kind CHECK (kind IN ('thumbs', 'rating', 'correction', 'detailed'))
);
CREATE INDEX ix_feedback_session ON feedback (organization_id, project_id, session_id, feedback_id);

CREATE TABLE gates (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    gate_id BIGINT NOT NULL,
    candidate VARCHAR NOT NULL,
    decided_at {timestamp} NOT NULL,
    record TEXT NOT NULL,
    CONSTRAINT pk_gates PRIMARY KEY (organization_id, project_id, gate_id)
);

CREATE TABLE generation_runs (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    asset VARCHAR NOT NULL,
    n_items BIGINT NOT NULL,
    record TEXT NOT NULL,
    origin VARCHAR,
    started_at {timestamp} NOT NULL,
    ended_at {timestamp},
    parked_until {timestamp},
    parked_why TEXT,
    CONSTRAINT pk_generation_runs PRIMARY KEY (organization_id, project_id, run_id)
);

CREATE TABLE guidelines (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    text TEXT NOT NULL,
    created_at {timestamp} NOT NULL,
    created_by VARCHAR NOT NULL,
    CONSTRAINT pk_guidelines PRIMARY KEY (organization_id, project_id, version)
);

CREATE TABLE heads (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    vote_seq BIGINT NOT NULL,
    audit_seq BIGINT NOT NULL,
    audit_hash VARCHAR(64) NOT NULL,
    CONSTRAINT pk_heads PRIMARY KEY (organization_id, project_id)
);

CREATE TABLE heartbeats (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    pid INTEGER NOT NULL,
    host VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    started_at {timestamp} NOT NULL,
    at {timestamp} NOT NULL,
    CONSTRAINT pk_heartbeats PRIMARY KEY (organization_id, project_id, run_id)
);

CREATE TABLE idempotency (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    idempotency_key VARCHAR NOT NULL,
    body_hash VARCHAR(64) NOT NULL,
    vote_id VARCHAR NOT NULL,
    recorded_at {timestamp} NOT NULL,
    CONSTRAINT pk_idempotency PRIMARY KEY (organization_id, project_id, idempotency_key)
);

CREATE TABLE imports (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    import_id BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    file TEXT NOT NULL,
    state VARCHAR NOT NULL,
    started_at {timestamp} NOT NULL,
    finished_at {timestamp},
    record TEXT NOT NULL,
    CONSTRAINT pk_imports PRIMARY KEY (organization_id, project_id, import_id),
    CONSTRAINT ck_imports_state CHECK (state IN ('started', 'finished', 'failed'))
);

CREATE TABLE promotions (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    promotion_id BIGINT NOT NULL,
    model_name VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    promoted_at {timestamp} NOT NULL,
    record TEXT NOT NULL,
    CONSTRAINT pk_promotions PRIMARY KEY (organization_id, project_id, promotion_id)
);
CREATE INDEX ix_promotions_model
    ON promotions (organization_id, project_id, model_name, promotion_id);

CREATE TABLE replays (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    day VARCHAR(10) NOT NULL,
    state VARCHAR NOT NULL,
    asked_at {timestamp} NOT NULL,
    done_at {timestamp},
    leased_for VARCHAR,
    leased_until {timestamp},
    CONSTRAINT pk_replays PRIMARY KEY (organization_id, project_id, day),
    CONSTRAINT ck_replays_state CHECK (state IN ('pending', 'done'))
);

CREATE TABLE requests (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    principal VARCHAR NOT NULL,
    idempotency_key VARCHAR NOT NULL,
    request_hash VARCHAR(64) NOT NULL,
    status INTEGER,
    answer TEXT,
    started_at {timestamp} NOT NULL,
    expires_at {timestamp} NOT NULL,
    CONSTRAINT pk_requests PRIMARY KEY (organization_id, project_id, principal, idempotency_key)
);
CREATE INDEX ix_requests_expires_at ON requests (organization_id, project_id, expires_at);

CREATE TABLE users (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    user_id VARCHAR NOT NULL,
    email VARCHAR NOT NULL,
    name TEXT NOT NULL,
    kind VARCHAR NOT NULL,
    password_hash TEXT,
    created_at {timestamp} NOT NULL,
    disabled_at {timestamp},
    CONSTRAINT pk_users PRIMARY KEY (organization_id, project_id, user_id),
    CONSTRAINT ck_users_kind CHECK (kind IN ('person', 'service')),
    CONSTRAINT uq_users_email UNIQUE (organization_id, project_id, email)
);

CREATE TABLE assignments (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    assignment_id VARCHAR NOT NULL,
    comparison_id VARCHAR NOT NULL,
    annotator_id VARCHAR NOT NULL,
    pass_no INTEGER NOT NULL,
    kind VARCHAR NOT NULL,
    is_swapped BOOLEAN NOT NULL,
    n BIGINT NOT NULL,
    state VARCHAR NOT NULL,
    slot_no INTEGER,
    leased_at {timestamp} NOT NULL,
    leased_until {timestamp} NOT NULL,
    settled_at {timestamp},
    CONSTRAINT pk_assignments PRIMARY KEY (organization_id, project_id, assignment_id),
    CONSTRAINT ck_assignments_kind CHECK (kind IN ('normal', 'repeat', 'gold')),
    CONSTRAINT ck_assignments_state CHECK (state IN ('leased', 'voted', 'skipped', 'released')),
    CONSTRAINT uq_assignments_turn
        UNIQUE (organization_id, project_id, comparison_id, annotator_id, pass_no),
    CONSTRAINT fk_assignments_comparison_id_comparisons FOREIGN KEY(organization_id, project_id,
            comparison_id) REFERENCES comparisons (organization_id, project_id, comparison_id)
);
CREATE INDEX ix_assignments_annotator ON assignments (organization_id, project_id, annotator_id, n);
CREATE INDEX ix_assignments_state
    ON assignments (organization_id, project_id, annotator_id, state, settled_at);

CREATE TABLE drift_events (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    event_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    model_version VARCHAR NOT NULL,
    detector VARCHAR NOT NULL,
    params_hash VARCHAR NOT NULL,
    stream VARCHAR NOT NULL,
    seq BIGINT NOT NULL,
    day VARCHAR(10) NOT NULL,
    detected_at {timestamp} NOT NULL,
    record TEXT NOT NULL,
    decision_id BIGINT,
    CONSTRAINT pk_drift_events PRIMARY KEY (organization_id, project_id, event_id),
    CONSTRAINT uq_drift_events_detection
        UNIQUE (organization_id, project_id, model_version, detector, params_hash, stream, seq),
    CONSTRAINT fk_drift_events_decision_id_decisions FOREIGN KEY(organization_id, project_id,
            decision_id) REFERENCES decisions (organization_id, project_id, decision_id)
);
CREATE INDEX ix_drift_events_day ON drift_events (organization_id, project_id, day);
CREATE INDEX ix_drift_events_decision ON drift_events (organization_id, project_id, decision_id);

CREATE TABLE generation_attempts (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    item_no BIGINT NOT NULL,
    attempt_no INTEGER NOT NULL,
    provider VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    started_at {timestamp} NOT NULL,
    latency_ms FLOAT NOT NULL,
    outcome VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    status INTEGER,
    n_prompt_tokens BIGINT NOT NULL,
    n_tokens BIGINT NOT NULL,
    cost BIGINT NOT NULL,
    billing VARCHAR NOT NULL,
    wait_s FLOAT,
    error TEXT,
    partial TEXT,
    CONSTRAINT pk_generation_attempts
        PRIMARY KEY (organization_id, project_id, run_id, item_no, attempt_no),
    CONSTRAINT ck_generation_attempts_outcome
        CHECK (outcome IN ('succeeded', 'retryable', 'terminal', 'lost')),
    CONSTRAINT ck_generation_attempts_billing CHECK (billing IN ('metered', 'none', 'unknown')),
    CONSTRAINT fk_generation_attempts_run_id_generation_runs FOREIGN KEY(organization_id,
            project_id, run_id) REFERENCES generation_runs (organization_id, project_id, run_id)
);

CREATE TABLE generation_items (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    item_no BIGINT NOT NULL,
    position BIGINT NOT NULL,
    prompt_id VARCHAR NOT NULL,
    provider VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    sample_index INTEGER NOT NULL,
    params TEXT NOT NULL,
    cache_key VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    owner VARCHAR,
    leased_until {timestamp},
    not_before {timestamp},
    reserved BIGINT NOT NULL,
    is_metered BOOLEAN NOT NULL,
    is_cached BOOLEAN NOT NULL,
    n_attempts INTEGER NOT NULL,
    n_faults INTEGER NOT NULL,
    kind VARCHAR,
    error TEXT,
    settled_at {timestamp},
    CONSTRAINT pk_generation_items PRIMARY KEY (organization_id, project_id, run_id, item_no),
    CONSTRAINT ck_generation_items_state CHECK (state IN ('open', 'leased', 'succeeded', 'failed')),
    CONSTRAINT fk_generation_items_run_id_generation_runs FOREIGN KEY(organization_id,
            project_id, run_id) REFERENCES generation_runs (organization_id, project_id, run_id)
);
CREATE INDEX ix_generation_items_leased
    ON generation_items (organization_id, project_id, cache_key)
    WHERE state = 'leased';
CREATE INDEX ix_generation_items_to_do
    ON generation_items (organization_id, project_id, run_id, provider, model, position)
    WHERE state = 'open';

CREATE TABLE generation_spending (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    day VARCHAR(10) NOT NULL,
    provider VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    asset VARCHAR NOT NULL,
    n_calls BIGINT NOT NULL,
    n_unknown BIGINT NOT NULL,
    n_prompt_tokens BIGINT NOT NULL,
    n_tokens BIGINT NOT NULL,
    cost BIGINT NOT NULL,
    cost_unknown BIGINT NOT NULL,
    CONSTRAINT pk_generation_spending
        PRIMARY KEY (organization_id, project_id, run_id, day, provider, model),
    CONSTRAINT fk_generation_spending_run_id_generation_runs FOREIGN KEY(organization_id,
            project_id, run_id) REFERENCES generation_runs (organization_id, project_id, run_id)
);
CREATE INDEX ix_generation_spending_day ON generation_spending (organization_id, project_id, day);
CREATE INDEX ix_generation_spending_provider
    ON generation_spending (organization_id, project_id, provider);

CREATE TABLE predictions (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    comparison_id VARCHAR NOT NULL,
    reward_model VARCHAR NOT NULL,
    day VARCHAR(10) NOT NULL,
    calibrator VARCHAR NOT NULL,
    data_hash VARCHAR NOT NULL,
    features_hash VARCHAR NOT NULL,
    score_a FLOAT NOT NULL,
    score_b FLOAT NOT NULL,
    p_raw FLOAT NOT NULL,
    p_calibrated FLOAT NOT NULL,
    predicted_at {timestamp} NOT NULL,
    is_replayed BOOLEAN,
    CONSTRAINT pk_predictions
        PRIMARY KEY (organization_id, project_id, comparison_id, reward_model),
    CONSTRAINT ck_predictions_probabilities
        CHECK (p_raw BETWEEN 0 AND 1 AND p_calibrated BETWEEN 0 AND 1),
    CONSTRAINT fk_predictions_comparison_id_comparisons FOREIGN KEY(organization_id, project_id,
            comparison_id) REFERENCES comparisons (organization_id, project_id, comparison_id)
);
CREATE INDEX ix_predictions_day ON predictions (organization_id, project_id, day);

CREATE TABLE role_grants (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    user_id VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    granted_at {timestamp} NOT NULL,
    granted_by VARCHAR NOT NULL,
    CONSTRAINT pk_role_grants PRIMARY KEY (organization_id, project_id, user_id, role),
    CONSTRAINT fk_role_grants_user_id_users FOREIGN KEY(organization_id, project_id, user_id)
            REFERENCES users (organization_id, project_id, user_id)
);

CREATE TABLE slots (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    comparison_id VARCHAR NOT NULL,
    slot_no INTEGER NOT NULL,
    priority BIGINT NOT NULL,
    state VARCHAR NOT NULL,
    assignment_id VARCHAR,
    leased_until {timestamp},
    annotator_id VARCHAR,
    CONSTRAINT pk_slots PRIMARY KEY (organization_id, project_id, comparison_id, slot_no),
    CONSTRAINT ck_slots_state CHECK (state IN ('open', 'leased', 'done')),
    CONSTRAINT fk_slots_comparison_id_comparisons FOREIGN KEY(organization_id, project_id,
            comparison_id) REFERENCES comparisons (organization_id, project_id, comparison_id)
);
CREATE INDEX ix_slots_named
    ON slots (organization_id, project_id, annotator_id, priority, comparison_id, slot_no)
    WHERE annotator_id IS NOT NULL AND state <> 'done';
CREATE INDEX ix_slots_to_do
    ON slots (organization_id, project_id, priority, comparison_id, slot_no)
    WHERE state <> 'done';

CREATE TABLE tokens (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    token_hash VARCHAR(64) NOT NULL,
    user_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    name TEXT,
    scopes TEXT,
    created_at {timestamp} NOT NULL,
    expires_at {timestamp} NOT NULL,
    last_used_at {timestamp},
    revoked_at {timestamp},
    CONSTRAINT pk_tokens PRIMARY KEY (organization_id, project_id, token_hash),
    CONSTRAINT ck_tokens_kind CHECK (kind IN ('api', 'session', 'login')),
    CONSTRAINT fk_tokens_user_id_users FOREIGN KEY(organization_id, project_id, user_id)
            REFERENCES users (organization_id, project_id, user_id)
);
CREATE INDEX ix_tokens_user ON tokens (organization_id, project_id, user_id);

CREATE TABLE votes (
    organization_id VARCHAR NOT NULL,
    project_id VARCHAR NOT NULL,
    seq BIGINT NOT NULL,
    vote_id VARCHAR NOT NULL,
    comparison_id VARCHAR NOT NULL,
    annotator_id VARCHAR NOT NULL,
    annotator_kind VARCHAR NOT NULL,
    choice VARCHAR NOT NULL,
    strength INTEGER,
    reason TEXT,
    stated_confidence FLOAT,
    duration_s FLOAT,
    voted_at {timestamp},
    day VARCHAR(10) NOT NULL,
    received_at {timestamp} NOT NULL,
    origin VARCHAR NOT NULL,
    idempotency_key VARCHAR NOT NULL,
    supersedes VARCHAR,
    pass_no INTEGER NOT NULL,
    revision_no INTEGER NOT NULL,
    displaced_day VARCHAR(10),
    task_id VARCHAR,
    assignment_id VARCHAR,
    is_swapped BOOLEAN,
    guideline_version INTEGER,
    details TEXT,
    CONSTRAINT pk_votes PRIMARY KEY (organization_id, project_id, seq),
    CONSTRAINT ck_votes_choice CHECK (choice IN ('a', 'b', 'tie', 'both_bad', 'skip')),
    CONSTRAINT ck_votes_strength
        CHECK (strength IS NULL OR (choice IN ('a', 'b') AND strength BETWEEN 1 AND 4)),
    CONSTRAINT uq_votes_supersedes UNIQUE (organization_id, project_id, supersedes),
    CONSTRAINT uq_votes_vote_id UNIQUE (organization_id, project_id, vote_id),
    CONSTRAINT uq_votes_turn
        UNIQUE (organization_id, project_id, comparison_id, annotator_id, pass_no, revision_no),
    CONSTRAINT fk_votes_comparison_id_comparisons FOREIGN KEY(organization_id, project_id,
            comparison_id) REFERENCES comparisons (organization_id, project_id, comparison_id)
);
CREATE INDEX ix_votes_annotator ON votes (organization_id, project_id, annotator_id, seq);
CREATE INDEX ix_votes_day ON votes (organization_id, project_id, day, seq);
CREATE INDEX ix_votes_displaced_day
    ON votes (organization_id, project_id, displaced_day, seq)
    WHERE displaced_day IS NOT NULL;
