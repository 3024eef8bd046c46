-- The tables of version 0.1.0. Never edited.
CREATE TABLE alert_messages (
    message_id VARCHAR NOT NULL,
    alert_id BIGINT,
    target VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    payload TEXT NOT NULL,
    state VARCHAR NOT NULL,
    n_attempts INTEGER NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    next_attempt_at TIMESTAMP WITH TIME ZONE NOT NULL,
    delivered_at TIMESTAMP WITH TIME ZONE,
    last_error TEXT,
    CONSTRAINT pk_alert_messages PRIMARY KEY (message_id),
    CONSTRAINT ck_alert_messages_state CHECK (state IN ('pending', 'delivered', 'dead'))
);
CREATE INDEX ix_alert_messages_alert ON alert_messages (alert_id);
CREATE INDEX ix_alert_messages_due ON alert_messages (state, next_attempt_at);
CREATE TABLE alerts (
    alert_id BIGINT NOT NULL,
    rule VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    opened_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    record TEXT NOT NULL,
    CONSTRAINT pk_alerts PRIMARY KEY (alert_id),
    CONSTRAINT ck_alerts_state CHECK (state IN ('pending', 'open', 'acknowledged', 'resolved'))
);
CREATE UNIQUE INDEX ux_alerts_not_ended ON alerts (rule, subject) WHERE ended_at IS NULL;
CREATE TABLE annotation_rules (
    version INTEGER NOT NULL,
    record TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    created_by VARCHAR NOT NULL,
    CONSTRAINT pk_annotation_rules PRIMARY KEY (version)
);
CREATE TABLE annotator_groups (
    annotator_id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    CONSTRAINT pk_annotator_groups PRIMARY KEY (annotator_id)
);
CREATE TABLE audit (
    seq BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    actor VARCHAR NOT NULL,
    action VARCHAR NOT NULL,
    object_id VARCHAR NOT NULL,
    payload_digest VARCHAR(64) NOT NULL,
    prev_hash VARCHAR(64) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (seq)
);
CREATE TABLE calibrations (
    reward_model VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    fitted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    report TEXT NOT NULL,
    calibrator TEXT NOT NULL,
    CONSTRAINT pk_calibrations PRIMARY KEY (reward_model, version)
);
CREATE TABLE chain_heads (
    chain_head_id INTEGER NOT NULL CONSTRAINT ck_chain_heads_only_row CHECK (chain_head_id = 1),
    vote_seq BIGINT NOT NULL,
    audit_seq BIGINT NOT NULL,
    audit_hash VARCHAR(64) NOT NULL,
    CONSTRAINT pk_chain_heads PRIMARY KEY (chain_head_id)
);
CREATE TABLE comparisons (
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
    published_at TIMESTAMP WITH TIME ZONE NOT NULL,
    source VARCHAR,
    source_pair_id VARCHAR,
    split_group VARCHAR,
    split VARCHAR,
    gold VARCHAR,
    flag VARCHAR,
    pair_key VARCHAR,
    written_by VARCHAR,
    CONSTRAINT pk_comparisons PRIMARY KEY (comparison_id)
);
CREATE INDEX ix_comparisons_category ON comparisons (category, day, position, comparison_id);
CREATE INDEX ix_comparisons_day ON comparisons (day, position, comparison_id);
CREATE INDEX ix_comparisons_flag ON comparisons (flag, day, position, comparison_id) WHERE flag IS NOT NULL;
CREATE INDEX ix_comparisons_gold ON comparisons (day, position, comparison_id) WHERE gold IS NOT NULL;
CREATE INDEX ix_comparisons_pair_key ON comparisons (pair_key);
CREATE INDEX ix_comparisons_prompt ON comparisons (comparison_id, prompt_id, repeat_of);
CREATE INDEX ix_comparisons_source ON comparisons (source, day, position, comparison_id);
CREATE UNIQUE INDEX ix_comparisons_source_pair_id ON comparisons (source_pair_id) WHERE source_pair_id IS NOT NULL;
CREATE TABLE completion_cache (
    cache_key VARCHAR NOT NULL,
    value TEXT NOT NULL,
    used_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_completion_cache PRIMARY KEY (cache_key)
);
CREATE TABLE decisions (
    decision_id BIGINT NOT NULL,
    action VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    attempt INTEGER NOT NULL,
    run_id VARCHAR,
    leased_until TIMESTAMP WITH TIME ZONE,
    max_seq BIGINT NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE NOT NULL,
    actor VARCHAR,
    remedy VARCHAR,
    answers BIGINT,
    error TEXT,
    record TEXT NOT NULL,
    CONSTRAINT pk_decisions PRIMARY KEY (decision_id),
    CONSTRAINT ck_decisions_state CHECK (state IN ('held', 'pending', 'submitted', 'succeeded', 'failed'))
);
CREATE INDEX ix_decisions_state ON decisions (state);
CREATE TABLE detector_states (
    model_version VARCHAR NOT NULL,
    stream VARCHAR NOT NULL,
    detector VARCHAR NOT NULL,
    last_seq BIGINT NOT NULL,
    state TEXT NOT NULL,
    saved_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_detector_states PRIMARY KEY (model_version, stream, detector)
);
CREATE TABLE evaluation_sets (
    version INTEGER NOT NULL,
    origin TEXT NOT NULL,
    prompts_hash VARCHAR NOT NULL,
    n_prompts BIGINT NOT NULL,
    prompts TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_evaluation_sets PRIMARY KEY (version)
);
CREATE TABLE failed_logins (
    subject_hash VARCHAR NOT NULL,
    n_failed INTEGER NOT NULL,
    last_failed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_failed_logins PRIMARY KEY (subject_hash)
);
CREATE TABLE feedback (
    feedback_id BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    session_id VARCHAR,
    created_by VARCHAR NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    record TEXT NOT NULL,
    comparison_id VARCHAR,
    vote_id VARCHAR,
    idempotency_key VARCHAR,
    CONSTRAINT pk_feedback PRIMARY KEY (feedback_id),
    CONSTRAINT uq_feedback_idempotency_key UNIQUE (idempotency_key),
    CONSTRAINT ck_feedback_kind CHECK (kind IN ('thumbs', 'rating', 'correction', 'detailed'))
);
CREATE INDEX ix_feedback_session ON feedback (session_id, feedback_id);
CREATE TABLE gates (
    gate_id BIGINT NOT NULL,
    candidate VARCHAR NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE NOT NULL,
    record TEXT NOT NULL,
    CONSTRAINT pk_gates PRIMARY KEY (gate_id)
);
CREATE TABLE generation_runs (
    run_id VARCHAR NOT NULL,
    asset VARCHAR NOT NULL,
    n_items BIGINT NOT NULL,
    record TEXT NOT NULL,
    origin VARCHAR,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    paused_until TIMESTAMP WITH TIME ZONE,
    pause_reason TEXT,
    CONSTRAINT pk_generation_runs PRIMARY KEY (run_id)
);
CREATE TABLE guidelines (
    version INTEGER NOT NULL,
    text TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    created_by VARCHAR NOT NULL,
    CONSTRAINT pk_guidelines PRIMARY KEY (version)
);
CREATE TABLE heartbeats (
    run_id VARCHAR NOT NULL,
    pid INTEGER NOT NULL,
    host VARCHAR NOT NULL,
    job VARCHAR NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_heartbeats PRIMARY KEY (run_id)
);
CREATE TABLE imports (
    import_id BIGINT NOT NULL,
    kind VARCHAR NOT NULL,
    file TEXT NOT NULL,
    state VARCHAR NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    record TEXT NOT NULL,
    CONSTRAINT pk_imports PRIMARY KEY (import_id),
    CONSTRAINT ck_imports_state CHECK (state IN ('started', 'finished', 'failed'))
);
CREATE TABLE metric_points (
    day VARCHAR(10) NOT NULL,
    name VARCHAR NOT NULL,
    labels TEXT NOT NULL,
    n BIGINT NOT NULL,
    total FLOAT,
    total_squares FLOAT,
    value FLOAT,
    low FLOAT,
    high FLOAT,
    measured_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_metric_points PRIMARY KEY (day, name, labels)
);
CREATE INDEX ix_metric_points_name ON metric_points (name, day);
CREATE TABLE promotions (
    promotion_id BIGINT NOT NULL,
    model_name VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    promoted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    record TEXT NOT NULL,
    CONSTRAINT pk_promotions PRIMARY KEY (promotion_id)
);
CREATE INDEX ix_promotions_model ON promotions (model_name, promotion_id);
CREATE TABLE replays (
    day VARCHAR(10) NOT NULL,
    state VARCHAR NOT NULL,
    asked_at TIMESTAMP WITH TIME ZONE NOT NULL,
    done_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_replays PRIMARY KEY (day),
    CONSTRAINT ck_replays_state CHECK (state IN ('pending', 'done'))
);
CREATE TABLE users (
    user_id VARCHAR NOT NULL,
    email VARCHAR NOT NULL,
    name TEXT NOT NULL,
    kind VARCHAR NOT NULL,
    password_hash TEXT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    disabled_at TIMESTAMP WITH TIME ZONE,
    paused_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_users PRIMARY KEY (user_id),
    CONSTRAINT ck_users_kind CHECK (kind IN ('person', 'service')),
    CONSTRAINT uq_users_email UNIQUE (email)
);
CREATE TABLE adjudications (
    adjudication_id BIGINT NOT NULL,
    comparison_id VARCHAR NOT NULL,
    choice VARCHAR,
    reason TEXT NOT NULL,
    at_seq BIGINT NOT NULL,
    decided_by VARCHAR NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_adjudications PRIMARY KEY (adjudication_id),
    CONSTRAINT fk_adjudications_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE INDEX ix_adjudications_comparison ON adjudications (comparison_id, adjudication_id);
CREATE TABLE cards (
    card_id VARCHAR NOT NULL,
    comparison_id VARCHAR NOT NULL,
    annotator_id VARCHAR NOT NULL,
    pass_no INTEGER NOT NULL,
    kind VARCHAR NOT NULL,
    is_swapped BOOLEAN NOT NULL,
    n BIGINT NOT NULL,
    state VARCHAR NOT NULL,
    offered_to VARCHAR,
    leased_at TIMESTAMP WITH TIME ZONE NOT NULL,
    leased_until TIMESTAMP WITH TIME ZONE NOT NULL,
    settled_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_cards PRIMARY KEY (card_id),
    CONSTRAINT ck_cards_kind CHECK (kind IN ('normal', 'repeat', 'gold')),
    CONSTRAINT ck_cards_state CHECK (state IN ('leased', 'voted', 'skipped', 'released')),
    CONSTRAINT uq_cards_turn UNIQUE (comparison_id, annotator_id, pass_no),
    CONSTRAINT fk_cards_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE INDEX ix_cards_leased ON cards (comparison_id, leased_until) WHERE state = 'leased';
CREATE INDEX ix_cards_state ON cards (annotator_id, state, settled_at);
CREATE UNIQUE INDEX ix_cards_annotator ON cards (annotator_id, n);
CREATE TABLE drift_events (
    event_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    model_version VARCHAR NOT NULL,
    detector VARCHAR NOT NULL,
    params_hash VARCHAR NOT NULL,
    stream VARCHAR NOT NULL,
    seq BIGINT NOT NULL,
    day VARCHAR(10) NOT NULL,
    detected_at TIMESTAMP WITH TIME ZONE NOT NULL,
    record TEXT NOT NULL,
    decision_id BIGINT,
    is_replayed BOOLEAN,
    CONSTRAINT pk_drift_events PRIMARY KEY (event_id),
    CONSTRAINT uq_drift_events_detection UNIQUE (model_version, detector, params_hash, stream, seq),
    CONSTRAINT fk_drift_events_decision_id_decisions FOREIGN KEY(decision_id) REFERENCES decisions (decision_id)
);
CREATE INDEX ix_drift_events_day ON drift_events (day);
CREATE INDEX ix_drift_events_decision ON drift_events (decision_id);
CREATE TABLE generation_attempts (
    run_id VARCHAR NOT NULL,
    item_no BIGINT NOT NULL,
    attempt_no INTEGER NOT NULL,
    provider VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
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
    CONSTRAINT pk_generation_attempts PRIMARY KEY (run_id, item_no, attempt_no),
    CONSTRAINT ck_generation_attempts_outcome CHECK (outcome IN ('succeeded', 'retryable', 'terminal', 'lost')),
    CONSTRAINT ck_generation_attempts_billing CHECK (billing IN ('metered', 'none', 'unknown')),
    CONSTRAINT fk_generation_attempts_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE TABLE generation_batches (
    submission_id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    submitted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    batch_id VARCHAR,
    CONSTRAINT pk_generation_batches PRIMARY KEY (submission_id),
    CONSTRAINT fk_generation_batches_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE INDEX ix_generation_batches_run ON generation_batches (run_id);
CREATE TABLE generation_items (
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
    leased_until TIMESTAMP WITH TIME ZONE,
    not_before TIMESTAMP WITH TIME ZONE,
    reserved BIGINT NOT NULL,
    is_metered BOOLEAN NOT NULL,
    is_cached BOOLEAN NOT NULL,
    n_attempts INTEGER NOT NULL,
    n_faults INTEGER NOT NULL,
    kind VARCHAR,
    error TEXT,
    settled_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_generation_items PRIMARY KEY (run_id, item_no),
    CONSTRAINT ck_generation_items_state CHECK (state IN ('open', 'leased', 'succeeded', 'failed')),
    CONSTRAINT fk_generation_items_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE INDEX ix_generation_items_leased ON generation_items (cache_key) WHERE state = 'leased';
CREATE INDEX ix_generation_items_to_do ON generation_items (run_id, provider, model, position) WHERE state = 'open';
CREATE TABLE generation_spending (
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
    CONSTRAINT pk_generation_spending PRIMARY KEY (run_id, day, provider, model),
    CONSTRAINT fk_generation_spending_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE INDEX ix_generation_spending_day ON generation_spending (day);
CREATE INDEX ix_generation_spending_provider ON generation_spending (provider);
CREATE TABLE offers (
    comparison_id VARCHAR NOT NULL,
    offered_to VARCHAR NOT NULL,
    reserved_for VARCHAR NOT NULL,
    priority BIGINT NOT NULL,
    n_wanted INTEGER NOT NULL,
    n_done INTEGER NOT NULL,
    offered_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_offers PRIMARY KEY (comparison_id, offered_to),
    CONSTRAINT ck_offers_places CHECK (n_done BETWEEN 0 AND n_wanted),
    CONSTRAINT fk_offers_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE INDEX ix_offers_to_do ON offers (reserved_for, priority, comparison_id) WHERE n_done < n_wanted;
CREATE TABLE predictions (
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
    predicted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    is_replayed BOOLEAN,
    link_seq BIGINT NOT NULL,
    CONSTRAINT pk_predictions PRIMARY KEY (comparison_id, reward_model),
    CONSTRAINT ck_predictions_probabilities CHECK (p_raw BETWEEN 0 AND 1 AND p_calibrated BETWEEN 0 AND 1),
    CONSTRAINT fk_predictions_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE INDEX ix_predictions_day ON predictions (day);
CREATE TABLE role_grants (
    user_id VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    granted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    granted_by VARCHAR NOT NULL,
    CONSTRAINT pk_role_grants PRIMARY KEY (user_id, role),
    CONSTRAINT fk_role_grants_user_id_users FOREIGN KEY(user_id) REFERENCES users (user_id)
);
CREATE TABLE taste_changes (
    change_id BIGINT NOT NULL,
    change_seq BIGINT NOT NULL,
    category VARCHAR,
    cause TEXT NOT NULL,
    decision_id BIGINT,
    actor VARCHAR NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE NOT NULL,
    retracted_at TIMESTAMP WITH TIME ZONE,
    retracted_by VARCHAR,
    retraction_reason TEXT,
    CONSTRAINT pk_taste_changes PRIMARY KEY (change_id),
    CONSTRAINT fk_taste_changes_decision_id_decisions FOREIGN KEY(decision_id) REFERENCES decisions (decision_id)
);
CREATE TABLE tokens (
    token_hash VARCHAR(64) NOT NULL,
    user_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    name TEXT,
    scopes TEXT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_used_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_tokens PRIMARY KEY (token_hash),
    CONSTRAINT ck_tokens_kind CHECK (kind IN ('api', 'session', 'login')),
    CONSTRAINT fk_tokens_user_id_users FOREIGN KEY(user_id) REFERENCES users (user_id)
);
CREATE INDEX ix_tokens_user ON tokens (user_id);
CREATE TABLE votes (
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
    voted_at TIMESTAMP WITH TIME ZONE,
    day VARCHAR(10) NOT NULL,
    received_at TIMESTAMP WITH TIME ZONE NOT NULL,
    origin VARCHAR NOT NULL,
    idempotency_key VARCHAR NOT NULL,
    supersedes VARCHAR,
    pass_no INTEGER NOT NULL,
    revision_no INTEGER NOT NULL,
    displaced_day VARCHAR(10),
    task_id VARCHAR,
    card_id VARCHAR,
    is_swapped BOOLEAN,
    guideline_version INTEGER,
    is_blind BOOLEAN,
    details TEXT,
    CONSTRAINT pk_votes PRIMARY KEY (seq),
    CONSTRAINT ck_votes_choice CHECK (choice IN ('a', 'b', 'tie', 'both_bad', 'skip')),
    CONSTRAINT ck_votes_strength CHECK (strength IS NULL OR (choice IN ('a', 'b') AND strength BETWEEN 1 AND 4)),
    CONSTRAINT uq_votes_vote_id UNIQUE (vote_id),
    CONSTRAINT uq_votes_idempotency_key UNIQUE (idempotency_key),
    CONSTRAINT uq_votes_turn UNIQUE (comparison_id, annotator_id, pass_no, revision_no),
    CONSTRAINT uq_votes_supersedes UNIQUE (supersedes),
    CONSTRAINT fk_votes_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE INDEX ix_votes_annotator ON votes (annotator_id, seq);
CREATE INDEX ix_votes_day ON votes (day, seq);
CREATE INDEX ix_votes_displaced_day ON votes (displaced_day, seq) WHERE displaced_day IS NOT NULL;
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$;
CREATE TRIGGER votes_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON votes FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER predictions_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON predictions FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER guidelines_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON guidelines FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER annotation_rules_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON annotation_rules FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER feedback_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON feedback FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0-6119e5780122');
