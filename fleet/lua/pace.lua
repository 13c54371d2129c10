-- The fleet's limit on requests in flight, held in common: additive increase, multiplicative
-- decrease (Chiu and Jain 1989), once per burst. Also the workers' heartbeats and the breaker.
-- ARGV: worker, capacity, in flight, successes, throttles, failures since the last call, '1' to leave
-- → {this worker's share of the limit, the limit, live workers}
local worker, capacity = ARGV[1], tonumber(ARGV[2])
local successes, throttles, failures = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local ceiling = run_number('concurrency')

local p = redis.call('HMGET', PACING, 'limit', 'decreased_at', 'threshold')
local limit = math.min(tonumber(p[1] or run_number('start')), ceiling)
local decreased_at, threshold = tonumber(p[2] or '0'), tonumber(p[3] or ceiling)
if throttles > 0 and NOW - decreased_at > run_number('burst_ms') then
    limit = math.max(1, limit * run_number('decrease'))
    decreased_at, threshold = NOW, limit
elseif throttles == 0 and successes > 0 then
    -- Slow start up to the last level that was throttled: double every round of answers; then
    -- one step (2 % of the ceiling, at least 1) a round.
    local step = limit < threshold and limit or math.max(1, ceiling / 50)
    limit = math.min(ceiling, limit + step * successes / limit)
end
redis.call('HSET', PACING, 'limit', tostring(limit), 'decreased_at', int(decreased_at), 'threshold', tostring(threshold))

-- Breaker: nothing but failures, fleet-wide, for a while. Claims then pass one at a time.
if successes > 0 then
    redis.call('HSET', RUN, 'failures_in_a_row', 0, 'breaker_probe', 0)
elseif failures > 0 then
    local row = redis.call('HINCRBY', RUN, 'failures_in_a_row', failures)
    -- What is in flight may still succeed: a burst of failures at the start opens nothing.
    local enough = math.max(run_number('breaker_after'), run_number('in_flight'))
    if row >= enough and run_number('breaker_probe') == 0 then
        redis.call('HSET', RUN, 'breaker_probe', int(NOW + run_number('probe_ms')), 'breaker_since', int(NOW))
    end
end

if ARGV[7] == '1' then redis.call('HDEL', WORKERS, worker)
else redis.call('HSET', WORKERS, worker, int(NOW) .. '|' .. ARGV[2] .. '|' .. ARGV[3]) end
local names, capacities, total = {}, {}, 0
local all = redis.call('HGETALL', WORKERS)
for i = 1, #all, 2 do
    local seen, cap = string.match(all[i + 1], '(%d+)|(%d+)|')
    if NOW - tonumber(seen) > 30000 then redis.call('HDEL', WORKERS, all[i])
    else names[#names + 1] = all[i] capacities[all[i]] = tonumber(cap) total = total + tonumber(cap) end
end
-- Cumulative rounding: the shares sum to the limit exactly. The order rotates, so that with a
-- limit below the number of workers each has its turn.
table.sort(names)
local before, share = 0, 0
local turn = #names > 0 and math.floor(NOW / 10000) % #names or 0
for i = 1, #names do
    local name = names[(i - 1 + turn) % #names + 1]
    local after = before + capacities[name]
    if name == worker then
        share = math.floor(limit * after / total) - math.floor(limit * before / total)
    end
    before = after
end
return {share, int(limit), #names, run_number('breaker_probe') > 0 and 1 or 0}
