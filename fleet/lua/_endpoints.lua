-- The endpoints: which one the next request goes to, and what its outcome says of it. Prepended to
-- every script, after _common.lua. RUN.routes lists the tags that may be asked, in their rank.
-- ENDPOINTS holds `<tag>|<field>`:
--   the producer's   provider, prices (nano-USD a token), weight, off (why it may not be asked)
--   limit (AIMD)     limit, threshold, window_at, grown_at; good, throttled, fresh in the window
--   circuit          half, opened_at, cool_until, backoff, probed_at, slow, strikes; asked_now, bad in
--                    the window
--   routing          in_flight, credit
--   statistics       asked, done, tokens, prompt_tokens, spent, latency, latency<k>, throttles,
--                    failures, wrong, last; verified, unusable, unusable_last (the collector's)
local STATE = {
    'prompt_price', 'completion_price', 'request_price', 'weight', 'limit', 'threshold', 'window_at',
    'grown_at', 'good', 'throttled', 'fresh', 'half', 'opened_at', 'cool_until', 'backoff', 'probed_at',
    'slow', 'strikes', 'asked_now', 'bad', 'in_flight', 'credit',
}
local function states(tags)
    local fields, out = {}, {}
    for _, tag in ipairs(tags) do
        for _, name in ipairs(STATE) do fields[#fields + 1] = tag .. '|' .. name end
    end
    local values = #tags > 0 and redis.call('HMGET', ENDPOINTS, unpack(fields)) or {}
    for i, tag in ipairs(tags) do
        out[i] = {tag = tag}
        for j, name in ipairs(STATE) do
            out[i][name] = tonumber(values[(i - 1) * #STATE + j] or '0') or 0
        end
    end
    return out
end
local function routes()
    local tags = {}
    for tag in string.gmatch(redis.call('HGET', RUN, 'routes') or '', '[^\n]+') do
        tags[#tags + 1] = tag
    end
    return states(tags)
end
local function write_state(e, names)
    local fields = {}
    for _, name in ipairs(names) do
        fields[#fields + 1] = e.tag .. '|' .. name
        fields[#fields + 1] = string.format('%.17g', e[name])
    end
    redis.call('HSET', ENDPOINTS, unpack(fields))
end

-- The circuit of an endpoint. It opens when half of what was asked since the first refusal of this
-- window was refused, or when nothing at all succeeds; then nothing is asked for `backoff`,
-- doubled each time, and after it one request an interval: half open. Closed again by a success of
-- a request that was sent since, or by a probe that was not refused in twice the time (`slow`)
-- that the others were refused in: a 429 comes at once, an answer takes its time, and a request
-- that fails after minutes has said nothing before. The interval and the longest backoff keep a
-- fleet whose endpoints are all down at one request every `probe_ms`.
local CIRCUIT = {'half', 'opened_at', 'cool_until', 'backoff', 'probed_at', 'slow', 'strikes', 'asked_now',
    'bad', 'good', 'throttled', 'limit', 'threshold'}
local ENOUGH, FIRST_BACKOFF_MS, LONGEST_COOLING_MS = 8, 1000, 60000
local function open_circuit(e, retry_ms, took_ms)
    local _, others = string.gsub(redis.call('HGET', RUN, 'routes') or '', '\n', '')
    local longest = math.min(run_number('probe_ms') * (others + 1), LONGEST_COOLING_MS)
    e.backoff = math.min(math.max(2 * e.backoff, FIRST_BACKOFF_MS), longest)
    e.cool_until = NOW + math.min(math.max(e.backoff, retry_ms), LONGEST_COOLING_MS)
    -- When it is back it doubles up to where it was.
    if e.half == 0 then e.threshold = e.limit end
    e.slow = math.max(e.slow, took_ms)
    e.half, e.opened_at, e.probed_at, e.limit = 1, NOW, 0, 1
    e.strikes, e.asked_now, e.bad, e.good, e.throttled = 0, 0, 0, 0, 0
    write_state(e, CIRCUIT)
end
local function close_circuit(e)
    e.half, e.probed_at, e.slow, e.cool_until = 0, 0, 0, 0
    write_state(e, CIRCUIT)
end

-- What the outcome of a request says of its endpoint.
-- verdict: good | throttled (429: it is full) | overloaded (503: it is full and failed) | failed |
--          account (a limit of the account: it is not the endpoint's) | neutral
local function judge(tag, sent, verdict, retry_ms)
    if verdict == 'neutral' then return end
    local e = states({tag})[1]
    if verdict == 'good' then
        add_at(tag, 'fresh', 1)
        add_at(tag, 'good', 1)
        if e.strikes > 0 then redis.call('HSET', ENDPOINTS, tag .. '|strikes', 0) end
        if e.backoff > 0 and sent >= e.opened_at then
            e.backoff = 0
            close_circuit(e)
        end
        return
    end
    -- What was sent before it opened says nothing new.
    if sent < e.opened_at then return end
    if verdict ~= 'failed' and e.half == 0 then
        e.throttled = e.throttled + 1
        write_state(e, {'throttled'})
    end
    if verdict == 'account' then return end
    if e.half == 1 then return open_circuit(e, retry_ms, NOW - sent) end
    if e.bad == 0 then e.asked_now = 0 end
    e.bad, e.strikes = e.bad + 1, e.strikes + 1
    if e.bad >= math.max(ENOUGH, e.asked_now / 2) or e.strikes >= math.max(ENOUGH, e.in_flight) then
        return open_circuit(e, retry_ms, NOW - sent)
    end
    write_state(e, {'bad', 'strikes', 'asked_now'})
end

-- How long a probe has to go unrefused.
local function patience(e) return math.max(run_number('probe_ms'), 2 * e.slow) end

-- The endpoint that the next request goes to; or nil, and the ms until that may change. Smooth
-- weighted round robin over those that take requests. With `ranked`, the first of them takes all
-- but the share for the others.
local FULL_WAIT_MS = 250
local function choose(except)
    local free, wait = {}, math.huge
    for _, e in ipairs(routes()) do
        if e.tag ~= except and NOW < e.cool_until then wait = math.min(wait, e.cool_until - NOW)
        elseif e.tag ~= except then
            if e.half == 1 and e.probed_at > 0 and NOW - e.probed_at >= patience(e) then close_circuit(e) end
            if e.half == 1 or e.in_flight < math.floor(e.limit) then free[#free + 1] = e
            else wait = math.min(wait, FULL_WAIT_MS) end
        end
    end
    if #free == 0 then return nil, math.min(wait, LONGEST_COOLING_MS) end
    local ranked, share = run_number('ranked') == 1, run_number('share_for_others')
    local total, best = 0, nil
    for i, e in ipairs(free) do
        local weight = e.weight
        if ranked then
            weight = #free == 1 and 1 or i == 1 and 1 - share or share / (#free - 1)
        end
        e.credit = e.credit + weight
        total = total + weight
        if not best or e.credit > best.credit then best = e end
    end
    best.credit = best.credit - total
    for _, e in ipairs(free) do write_state(e, {'credit'}) end
    return best
end

-- Send a request there.
local function take(e)
    add_at(e.tag, 'in_flight', 1)
    add_at(e.tag, 'asked', 1)
    add_at(e.tag, 'asked_now', 1)
    if e.half == 1 then
        if e.probed_at == 0 then e.probed_at = NOW end
        -- While it stays without an answer, another follows now and then.
        e.cool_until = NOW + math.min(patience(e), LONGEST_COOLING_MS)
        write_state(e, {'probed_at', 'cool_until'})
    end
end

-- What an answer of `tokens` may cost there, for a prompt of so many bytes: at most one token a
-- byte, which holds for every byte-level vocabulary; a quarter of that is expected.
local function prices(e, bytes, tokens)
    local most = e.request_price + bytes * e.prompt_price + run_number('max_tokens') * e.completion_price
    local expected = e.request_price + bytes / 4 * e.prompt_price + tokens * e.completion_price
    return math.min(math.ceil(expected), math.ceil(most)), math.ceil(most)
end

-- Whether the money holds `more` (nano-USD) on top of what is spent and held, or which limit it
-- would break: 'cap' is the run's, 'funds' what the account had when it was last looked at.
local function breaks(more)
    local held = run_number('spent') + run_number('unconfirmed_most') + run_number('reserved_most') + more
    local cap, funds = run_number('cap'), redis.call('HGET', RUN, 'funds')
    if cap > 0 and held > cap then return 'cap' end
    if funds and held > tonumber(funds) then return 'funds' end
    return nil
end

-- Count a failed attempt, for the run and at the endpoint that it names.
local function count_failure(tag, verdict, kind, message)
    if kind == '' then return end
    redis.call('HINCRBY', ERRORS, kind, 1)
    redis.call('HSET', ERRORS, 'last:' .. kind, message)
    if tag == '' or verdict == 'neutral' then return end
    add_at(tag, verdict == 'throttled' and 'throttles' or 'failures', 1)
    if kind == 'wrong provider' then add_at(tag, 'wrong', 1) end
    redis.call('HSET', ENDPOINTS, tag .. '|last', message)
end

-- The failure of the request of claim `c`, told in ARGV from `at` on: nano-USD, presumed, verdict,
-- Retry-After ms, endpoint, kind, message, event, body.
local function failed(c, at)
    local verdict, kind = ARGV[at + 2], ARGV[at + 5]
    local tag = ARGV[at + 4] ~= '' and ARGV[at + 4] or c.tag or ''
    if c.tag and c.tag ~= '' then judge(c.tag, c.sent, verdict, tonumber(ARGV[at + 3])) end
    count_failure(tag, verdict, kind, ARGV[at + 6])
    local spent = tonumber(ARGV[at])
    if spent > 0 and tag ~= '' then add_at(tag, 'spent', spent) end
    if ARGV[at + 7] ~= '' then
        redis.call('XADD', COMPLETIONS, '*', 'm', ARGV[at + 7], 'r', ARGV[at + 8])
        add_run('rejected', 1)
    end
end
